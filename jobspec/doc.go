// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package jobspec reads job files: the language of Nomad's, in HCL or as the API's
// JSON, and writes both.
//
//	file.hcl ── syntax ── variables, locals ─┐
//	                                         ├─ language.txt: names, types ──▶ Block tree ── canonical ─┐
//	file.json ── API names ──────────────────┘                                                          │
//	                                                                                                    ▼
//	   HCL ◀── Job.HCL ──┐                              what a node runs: spec.Alloc ◀── build ──── Job.Tree
//	   JSON ◀── Job.JSON ┴── Job.Tree                   what a scheduler does: stays in the tree, with places
//
// One table, language.txt, has every block and argument with its type, since when
// the language has it, who acts on it, its name in JSON and its field in spec. All
// else follows from the table: decoding, both writers, suggestions, notes.
//
// Names are of two times. var.… and local.… are values of the file and are filled
// in here. All others, ${node.class} or ${NOMAD_TASK_DIR}, are known only where
// the task runs: they stay in the text as they are written, and taskenv and
// driverconfig fill them in. $${x} is the text ${x} there. Where a fixed value is
// needed, a name of run time is an error. The data of a template is read by
// nobody but the template's own language: ${x} in it is text.
//
// Values from outside are for people to set: a variable's default is weaker than
// NOMAD_VAR_x in the environment, that than a variable file, that than Vars. They
// are never read as templates: a ${x} in one is text.
//
// Old spellings are read and become today's, with a warning where a person should
// change them: names in quotes, resources { network { … } }, a task right in the
// job, env and meta as blocks or maps, numbers and booleans in quotes and the
// reverse. What only HCL's first version knew and cannot be read, foreign templates
// such as [[ .x ]] and shell expansions such as ${X:-y} are told apart from other
// faults of syntax, with the way out.
//
// A task's config becomes HCL-JSON: {"mount": [{"type": "bind"}]}. Every value's
// place in the file goes along as Task.Origin, so that faults found when the task
// starts point into the job file.
//
// Nothing is read, but the files that ParseConfig names, and nothing costs more
// than the limits in limit.go allow, whatever the file says.
//
// # Blocks
//
// Every block, the version of Nomad that brought it ("1.0": that or an earlier
// one; "own": none, it is nodekeep's), and who acts on it and on what is in it. "file" is this package, "node" the
// runners of every node, "driver" the task's driver, "scheduler" whoever places
// allocs: nodekeep carries these and leaves them alone. The others are capabilities
// that a host links as hooks. Job.NotActedOn lists what a given node passes over.
//
//	block                         since  acted on by
//	action                        1.7    action
//	add                           1.7    connect
//	affinity                      1.0    scheduler
//	args                          1.8    network
//	artifact                      1.0    artifact
//	canary_meta                   1.0    service
//	change_script                 1.3    template
//	check                         1.0    service
//	check_restart                 1.0    service
//	cni                           1.8    network
//	config                        1.0    secret, connect, driver
//	connect                       1.0    connect
//	constraint                    1.0    scheduler
//	consul                        1.1    consul
//	cron                          1.8    schedule
//	csi_plugin                    1.0    scheduler
//	depends_on                    own    node
//	device                        1.0    device
//	disconnect                    1.8    node, scheduler
//	dispatch_payload              1.0    payload
//	dns                           1.0    network
//	env                           1.0    secret, connect, node
//	envoy_gateway_bind_addresses  1.0    connect
//	ephemeral_disk                1.0    node
//	expose                        1.0    connect
//	gateway                       1.0    connect
//	group                         1.0    node, scheduler
//	header                        1.0    service
//	headers                       1.0    artifact
//	identity                      1.5    identity
//	ingress                       1.0    connect
//	job                           1.0    node, scheduler
//	lifecycle                     1.0    node
//	link                          1.8    scheduler
//	listener                      1.0    connect
//	locals                        1.0    file
//	logs                          1.0    node
//	mesh                          1.1    connect
//	mesh_gateway                  1.0    connect
//	meta                          1.0    node, scheduler, service, connect
//	migrate                       1.0    scheduler
//	mount_options                 1.0    volume
//	multiregion                   1.0    scheduler
//	network                       1.0    network
//	numa                          1.7    scheduler
//	on_exit                       own    node
//	options                       1.0    artifact
//	parameterized                 1.0    scheduler
//	path                          1.0    connect
//	periodic                      1.0    scheduler
//	policy                        1.0    scheduler
//	port                          1.0    network
//	proxy                         1.0    connect
//	region                        1.0    scheduler
//	request_headers               1.7    connect
//	reschedule                    1.0    scheduler
//	resources                     1.0    node
//	response_headers              1.7    connect
//	restart                       1.0    node, template
//	scaling                       1.0    scheduler
//	schedule                      1.8    schedule
//	sds                           1.7    connect
//	secret                        1.11   secret
//	service                       1.0    service, connect
//	set                           1.7    connect
//	sidecar_service               1.0    connect
//	sidecar_task                  1.0    connect
//	spread                        1.0    scheduler
//	strategy                      1.0    scheduler
//	tagged_addresses              1.4    service
//	target                        1.0    scheduler
//	task                          1.0    node, connect, driver
//	template                      1.0    template
//	terminating                   1.0    connect
//	tls                           1.0    connect
//	transparent_proxy             1.8    connect
//	ui                            1.8    scheduler
//	update                        1.0    scheduler, health
//	upstreams                     1.0    connect
//	validation                    1.0    file
//	variable                      1.0    file
//	variables                     1.0    file
//	vault                         1.0    vault
//	volume                        1.0    volume
//	volume_mount                  1.0    volume
//	wait                          1.2    template
//	weights                       1.9    service
package jobspec
