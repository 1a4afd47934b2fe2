// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

#include "textflag.h"

// See doc.go. What lies at DATA is written by image.
#define DATA      $0x400800
#define FLAGS     16
#define ERRFD     24
#define PATHS     32
#define SELF      40

#define SYS_write           $1
#define SYS_close           $3
#define SYS_rt_sigprocmask  $14
#define SYS_clone           $56
#define SYS_execve          $59
#define SYS_wait4           $61
#define SYS_kill            $62
#define SYS_fcntl           $72
#define SYS_rt_sigtimedwait $128
#define SYS_exit_group      $231
#define SYS_seccomp         $317

// The stack: 0 all signals, 8 the mask before, 16 a wait status or an errno,
// 32 a siginfo of 128 bytes.
//
// BX argc and what follows it, R12 the data, R13 number of places, R8 errno that is
// told, R9 the child.
TEXT ·program(SB), NOSPLIT|NOFRAME, $0-0
	MOVQ SP, BX
	SUBQ $192, SP
	MOVQ DATA, R12
	MOVQ PATHS(R12), R13

	// Our file and the pipe are not the program's.
	MOVQ SYS_fcntl, AX
	MOVQ SELF(R12), DI
	MOVQ $2, SI // F_SETFD
	MOVQ $1, DX // FD_CLOEXEC
	SYSCALL
	MOVQ SYS_fcntl, AX
	MOVQ ERRFD(R12), DI
	MOVQ $2, SI
	MOVQ $1, DX
	SYSCALL

	TESTQ $1, FLAGS(R12)
	JEQ   filtered
	MOVQ  SYS_seccomp, AX
	MOVQ  $1, DI // SECCOMP_SET_MODE_FILTER
	XORQ  SI, SI
	MOVQ  R12, DX
	SYSCALL
	TESTQ AX, AX
	JEQ   filtered
	NEGQ  AX
	ORQ   $0x10000, AX
	MOVQ  AX, R8
	JMP   fail

filtered:
	TESTQ $2, FLAGS(R12)
	JEQ   exec

	// PID 1: all signals wait until they are asked for.
	MOVQ  $-1, AX
	MOVQ  AX, 0(SP)
	MOVQ  SYS_rt_sigprocmask, AX
	MOVQ  $2, DI // SIG_SETMASK
	MOVQ  SP, SI
	LEAQ  8(SP), DX
	MOVQ  $8, R10
	SYSCALL
	MOVQ  SYS_clone, AX
	MOVQ  $17, DI // SIGCHLD: a fork
	XORQ  SI, SI
	XORQ  DX, DX
	XORQ  R10, R10
	XORQ  R8, R8
	SYSCALL
	TESTQ AX, AX
	JEQ   child
	JGT   parent
	NEGQ  AX
	MOVQ  AX, R8
	JMP   fail

child:
	MOVQ SYS_rt_sigprocmask, AX
	MOVQ $2, DI
	LEAQ 8(SP), SI
	XORQ DX, DX
	MOVQ $8, R10
	SYSCALL

	// The first place that holds a program is it; else the worst reason is told.
exec:
	XORQ R8, R8
	MOVQ $1, R9

next:
	CMPQ R9, R13
	JGT  fail
	MOVQ SYS_execve, AX
	MOVQ 8(BX)(R9*8), DI    // argv[R9]
	LEAQ 16(BX)(R13*8), SI  // argv after the places
	MOVQ 0(BX), DX
	LEAQ 16(BX)(DX*8), DX   // the environment
	SYSCALL
	NEGQ AX
	INCQ R9
	CMPQ AX, $2 // ENOENT
	JEQ  missing
	CMPQ AX, $20 // ENOTDIR
	JEQ  missing
	MOVQ AX, R8
	CMPQ AX, $13 // EACCES: there may be another one
	JEQ  next
	JMP  fail

missing:
	TESTQ R8, R8
	JNE   next
	MOVQ  AX, R8
	JMP   next

fail:
	MOVQ R8, 16(SP)
	MOVQ SYS_write, AX
	MOVQ ERRFD(R12), DI
	LEAQ 16(SP), SI
	MOVQ $4, DX
	SYSCALL
	MOVQ $127, DI

exit:
	MOVQ SYS_exit_group, AX
	SYSCALL
	JMP  exit

parent:
	MOVQ AX, R9
	MOVQ SYS_close, AX
	MOVQ SELF(R12), DI
	SYSCALL
	MOVQ SYS_close, AX
	MOVQ ERRFD(R12), DI
	SYSCALL

wait:
	MOVQ  SYS_rt_sigtimedwait, AX
	MOVQ  SP, DI
	LEAQ  32(SP), SI
	XORQ  DX, DX
	MOVQ  $8, R10
	SYSCALL
	TESTQ AX, AX
	JLE   wait
	CMPQ  AX, $17
	JEQ   reap
	MOVQ  AX, SI
	MOVQ  R9, DI
	MOVQ  SYS_kill, AX
	SYSCALL
	JMP   wait

reap:
	MOVQ  SYS_wait4, AX
	MOVQ  $-1, DI
	LEAQ  16(SP), SI
	MOVQ  $1, DX // WNOHANG
	XORQ  R10, R10
	SYSCALL
	TESTQ AX, AX
	JLE   wait
	CMPQ  AX, R9
	JNE   reap
	MOVL  16(SP), DI
	MOVL  DI, AX
	ANDL  $0x7f, AX
	JNE   signalled
	SHRL  $8, DI
	ANDL  $0xff, DI
	JMP   exit

signalled:
	LEAQ 128(AX), DI
	JMP  exit

	// The mark: "nodekeep.mark.01".
	BYTE $0x6e; BYTE $0x6f; BYTE $0x64; BYTE $0x65
	BYTE $0x6b; BYTE $0x65; BYTE $0x65; BYTE $0x70
	BYTE $0x2e; BYTE $0x6d; BYTE $0x61; BYTE $0x72
	BYTE $0x6b; BYTE $0x2e; BYTE $0x30; BYTE $0x31
	RET

// func address() unsafe.Pointer
TEXT ·address(SB), NOSPLIT, $0-8
	LEAQ ·program(SB), AX
	MOVQ AX, ret+0(FP)
	RET
