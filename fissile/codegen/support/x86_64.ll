; The few things the gang needs that differ between processors: x86-64.
; In: nothing. Out: a spin hint, the time-stamp counter, and the float environment kernels run in.
; Invariant: the caller's rounding mode, denormal flags and sticky exceptions survive a run.

declare void @llvm.x86.sse2.pause()
declare i64 @llvm.readcyclecounter()
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)

define internal void @relax() alwaysinline nounwind "no-builtins" {
  call void @llvm.x86.sse2.pause()
  ret void
}

define internal i64 @cycles() alwaysinline nounwind "no-builtins" {
  %now = call i64 @llvm.readcyclecounter()
  ret i64 %now
}

; Round to nearest, denormals kept, exceptions masked; returns what was there.
define internal i32 @float_default() nounwind "no-builtins" {
  %cell = alloca i32, align 4
  call void @llvm.x86.sse.stmxcsr(ptr %cell)
  %before = load i32, ptr %cell, align 4
  store i32 8064, ptr %cell, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr %cell)
  ret i32 %before
}

define internal void @float_restore(i32 %before) nounwind "no-builtins" {
  %cell = alloca i32, align 4
  store i32 %before, ptr %cell, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr %cell)
  ret void
}
