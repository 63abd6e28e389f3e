; memmove, memcpy and memset under the names LLVM calls for copy and fill loops it recognises.
; In: pointers and a byte count. Out: the destination, as in C.
; Invariant: "no-builtins" keeps LLVM from turning a body into a call of itself.

; Sizes of 32 bytes and less: two loads that may overlap, both done before the first store.
define internal void @move_small(ptr %to, ptr %from, i64 %n) nounwind "no-builtins" {
entry:
  %ge16 = icmp uge i64 %n, 16
  br i1 %ge16, label %by16, label %below16
by16:
  %e16 = sub i64 %n, 16
  %f16 = getelementptr i8, ptr %from, i64 %e16
  %a16 = load <16 x i8>, ptr %from, align 1
  %b16 = load <16 x i8>, ptr %f16, align 1
  %t16 = getelementptr i8, ptr %to, i64 %e16
  store <16 x i8> %a16, ptr %to, align 1
  store <16 x i8> %b16, ptr %t16, align 1
  ret void
below16:
  %ge8 = icmp uge i64 %n, 8
  br i1 %ge8, label %by8, label %below8
by8:
  %e8 = sub i64 %n, 8
  %f8 = getelementptr i8, ptr %from, i64 %e8
  %a8 = load i64, ptr %from, align 1
  %b8 = load i64, ptr %f8, align 1
  %t8 = getelementptr i8, ptr %to, i64 %e8
  store i64 %a8, ptr %to, align 1
  store i64 %b8, ptr %t8, align 1
  ret void
below8:
  %ge4 = icmp uge i64 %n, 4
  br i1 %ge4, label %by4, label %below4
by4:
  %e4 = sub i64 %n, 4
  %f4 = getelementptr i8, ptr %from, i64 %e4
  %a4 = load i32, ptr %from, align 1
  %b4 = load i32, ptr %f4, align 1
  %t4 = getelementptr i8, ptr %to, i64 %e4
  store i32 %a4, ptr %to, align 1
  store i32 %b4, ptr %t4, align 1
  ret void
below4:
  %ge1 = icmp uge i64 %n, 1
  br i1 %ge1, label %by1, label %done
by1:
  %mid = lshr i64 %n, 1
  %e1 = sub i64 %n, 1
  %fm = getelementptr i8, ptr %from, i64 %mid
  %fe = getelementptr i8, ptr %from, i64 %e1
  %a1 = load i8, ptr %from, align 1
  %m1 = load i8, ptr %fm, align 1
  %b1 = load i8, ptr %fe, align 1
  %tm = getelementptr i8, ptr %to, i64 %mid
  %te = getelementptr i8, ptr %to, i64 %e1
  store i8 %a1, ptr %to, align 1
  store i8 %m1, ptr %tm, align 1
  store i8 %b1, ptr %te, align 1
  br label %done
done:
  ret void
}

; Upwards, 64 bytes a turn; the last 64 were loaded before the first store, so overlap is safe.
define internal void @move_up(ptr %to, ptr %from, i64 %n) nounwind "no-builtins" {
entry:
  %last = sub i64 %n, 64
  %fl = getelementptr i8, ptr %from, i64 %last
  %fl2 = getelementptr i8, ptr %fl, i64 32
  %l0 = load <32 x i8>, ptr %fl, align 1
  %l1 = load <32 x i8>, ptr %fl2, align 1
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i.next, %body ]
  %more = icmp ult i64 %i, %last
  br i1 %more, label %body, label %tail
body:
  %f0 = getelementptr i8, ptr %from, i64 %i
  %f1 = getelementptr i8, ptr %f0, i64 32
  %v0 = load <32 x i8>, ptr %f0, align 1
  %v1 = load <32 x i8>, ptr %f1, align 1
  %t0 = getelementptr i8, ptr %to, i64 %i
  %t1 = getelementptr i8, ptr %t0, i64 32
  store <32 x i8> %v0, ptr %t0, align 1
  store <32 x i8> %v1, ptr %t1, align 1
  %i.next = add i64 %i, 64
  br label %loop
tail:
  %tl = getelementptr i8, ptr %to, i64 %last
  %tl2 = getelementptr i8, ptr %tl, i64 32
  store <32 x i8> %l0, ptr %tl, align 1
  store <32 x i8> %l1, ptr %tl2, align 1
  ret void
}

; Downwards: the mirror image, the first 64 bytes loaded before anything is stored.
define internal void @move_down(ptr %to, ptr %from, i64 %n) nounwind "no-builtins" {
entry:
  %from2 = getelementptr i8, ptr %from, i64 32
  %h0 = load <32 x i8>, ptr %from, align 1
  %h1 = load <32 x i8>, ptr %from2, align 1
  br label %loop
loop:
  %i = phi i64 [ %n, %entry ], [ %i.next, %body ]
  %more = icmp ugt i64 %i, 64
  br i1 %more, label %body, label %head
body:
  %i.next = sub i64 %i, 64
  %f0 = getelementptr i8, ptr %from, i64 %i.next
  %f1 = getelementptr i8, ptr %f0, i64 32
  %v0 = load <32 x i8>, ptr %f0, align 1
  %v1 = load <32 x i8>, ptr %f1, align 1
  %t0 = getelementptr i8, ptr %to, i64 %i.next
  %t1 = getelementptr i8, ptr %t0, i64 32
  store <32 x i8> %v0, ptr %t0, align 1
  store <32 x i8> %v1, ptr %t1, align 1
  br label %loop
head:
  %to2 = getelementptr i8, ptr %to, i64 32
  store <32 x i8> %h0, ptr %to, align 1
  store <32 x i8> %h1, ptr %to2, align 1
  ret void
}

define hidden ptr @memmove(ptr %to, ptr %from, i64 %n) nounwind "no-builtins" {
entry:
  %small = icmp ule i64 %n, 32
  br i1 %small, label %by.small, label %medium
by.small:
  call void @move_small(ptr %to, ptr %from, i64 %n)
  ret ptr %to
medium:
  %fits = icmp ult i64 %n, 64
  br i1 %fits, label %by32, label %large
by32:
  %e = sub i64 %n, 32
  %fe = getelementptr i8, ptr %from, i64 %e
  %a = load <32 x i8>, ptr %from, align 1
  %b = load <32 x i8>, ptr %fe, align 1
  %te = getelementptr i8, ptr %to, i64 %e
  store <32 x i8> %a, ptr %to, align 1
  store <32 x i8> %b, ptr %te, align 1
  ret ptr %to
large:
  %to.i = ptrtoint ptr %to to i64
  %from.i = ptrtoint ptr %from to i64
  %gap = sub i64 %to.i, %from.i
  %up = icmp uge i64 %gap, %n
  br i1 %up, label %upwards, label %downwards
upwards:
  call void @move_up(ptr %to, ptr %from, i64 %n)
  ret ptr %to
downwards:
  call void @move_down(ptr %to, ptr %from, i64 %n)
  ret ptr %to
}

define hidden ptr @memcpy(ptr %to, ptr %from, i64 %n) nounwind "no-builtins" {
  %r = call ptr @memmove(ptr %to, ptr %from, i64 %n) nobuiltin
  ret ptr %r
}

define hidden ptr @memset(ptr %to, i32 %value, i64 %n) nounwind "no-builtins" {
entry:
  %byte = trunc i32 %value to i8
  %one = insertelement <32 x i8> poison, i8 %byte, i64 0
  %all = shufflevector <32 x i8> %one, <32 x i8> poison, <32 x i32> zeroinitializer
  %short = icmp ult i64 %n, 32
  br i1 %short, label %bytes, label %vectors
bytes:
  %j = phi i64 [ 0, %entry ], [ %j.next, %bytes.body ]
  %j.more = icmp ult i64 %j, %n
  br i1 %j.more, label %bytes.body, label %done
bytes.body:
  %tj = getelementptr i8, ptr %to, i64 %j
  store i8 %byte, ptr %tj, align 1
  %j.next = add i64 %j, 1
  br label %bytes
vectors:
  %last = sub i64 %n, 32
  br label %loop
loop:
  %i = phi i64 [ 0, %vectors ], [ %i.next, %body ]
  %more = icmp ult i64 %i, %last
  br i1 %more, label %body, label %tail
body:
  %ti = getelementptr i8, ptr %to, i64 %i
  store <32 x i8> %all, ptr %ti, align 1
  %i.next = add i64 %i, 32
  br label %loop
tail:
  %tl = getelementptr i8, ptr %to, i64 %last
  store <32 x i8> %all, ptr %tl, align 1
  br label %done
done:
  ret ptr %to
}
