// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package spec

import "reflect"

// Clone returns a copy that shares no memory with a.
func (a *Alloc) Clone() *Alloc {
	if a == nil {
		return nil
	}
	return clone(reflect.ValueOf(a)).Interface().(*Alloc)
}

// Clone returns a copy that shares no memory with t.
func (t *Task) Clone() *Task {
	if t == nil {
		return nil
	}
	return clone(reflect.ValueOf(t)).Interface().(*Task)
}

// clone copies whatever plain data can hold. By reflection, so that a field
// added to a type cannot be forgotten here. Nil stays nil and empty stays empty.
func clone(v reflect.Value) reflect.Value {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return v
		}
		if v.Kind() == reflect.Interface {
			return clone(v.Elem())
		}
		c := reflect.New(v.Type().Elem())
		c.Elem().Set(clone(v.Elem()))
		return c
	case reflect.Slice:
		if v.IsNil() {
			return v
		}
		c := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		if flat(v.Type().Elem().Kind()) {
			reflect.Copy(c, v)
			return c
		}
		for i := range v.Len() {
			c.Index(i).Set(clone(v.Index(i)))
		}
		return c
	case reflect.Map:
		if v.IsNil() {
			return v
		}
		c := reflect.MakeMapWithSize(v.Type(), v.Len())
		for it := v.MapRange(); it.Next(); {
			c.SetMapIndex(it.Key(), clone(it.Value()))
		}
		return c
	case reflect.Struct:
		// Assigned first: types such as time.Time have fields of their own only.
		c := reflect.New(v.Type()).Elem()
		c.Set(v)
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && !flat(f.Type.Kind()) {
				c.Field(i).Set(clone(v.Field(i)))
			}
		}
		return c
	default:
		return v
	}
}

// flat says that assigning a value of that kind copies all of it.
func flat(k reflect.Kind) bool {
	return k < reflect.Array && k != reflect.Invalid || k == reflect.String
}
