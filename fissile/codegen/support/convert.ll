; The half and bfloat16 conversions LLVM calls where the processor has no instruction for them.
; In and out: as in compiler-rt (a half or bfloat travels in a vector register).
; Invariant: round to nearest, ties to even, once; NaN stays NaN and becomes quiet.

define internal i16 @half_bits(i32 %bits) nounwind "no-builtins" {
entry:
  %sign = lshr i32 %bits, 16
  %sign16 = and i32 %sign, 32768
  %a = and i32 %bits, 2147483647
  %isnan = icmp ugt i32 %a, 2139095040
  %big = icmp uge i32 %a, 1199570944
  %tiny = icmp ult i32 %a, 947912704
  %payload = lshr i32 %a, 13
  %payload10 = and i32 %payload, 1023
  %nan = or i32 %payload10, 32256
  %af = bitcast i32 %a to float
  %shifted = fadd float %af, 5.000000e-01
  %shifted.i = bitcast float %shifted to i32
  %denormal = sub i32 %shifted.i, 1056964608
  %odd = and i32 %payload, 1
  %bias = add i32 %a, 3355447295
  %rounded = add i32 %bias, %odd
  %normal = lshr i32 %rounded, 13
  %r0 = select i1 %tiny, i32 %denormal, i32 %normal
  %r1 = select i1 %big, i32 31744, i32 %r0
  %r2 = select i1 %isnan, i32 %nan, i32 %r1
  %r3 = or i32 %r2, %sign16
  %r = trunc i32 %r3 to i16
  ret i16 %r
}

define internal i32 @half_to_float_bits(i16 %h) nounwind "no-builtins" {
entry:
  %w = zext i16 %h to i32
  %sign = and i32 %w, 32768
  %sign31 = shl i32 %sign, 16
  %mag = and i32 %w, 32767
  %up = shl i32 %mag, 13
  %exp = and i32 %up, 260046848
  %normal = add i32 %up, 939524096
  %special0 = add i32 %normal, 939524096
  %mant = and i32 %mag, 1023
  %isnan = icmp ne i32 %mant, 0
  %quiet = or i32 %special0, 4194304
  %special = select i1 %isnan, i32 %quiet, i32 %special0
  %lifted = add i32 %normal, 8388608
  %lifted.f = bitcast i32 %lifted to float
  %magic = bitcast i32 947912704 to float
  %small = fsub float %lifted.f, %magic
  %small.i = bitcast float %small to i32
  %ismax = icmp eq i32 %exp, 260046848
  %iszero = icmp eq i32 %exp, 0
  %r0 = select i1 %iszero, i32 %small.i, i32 %normal
  %r1 = select i1 %ismax, i32 %special, i32 %r0
  %r = or i32 %r1, %sign31
  ret i32 %r
}

define internal i16 @bfloat_bits(i32 %bits) nounwind "no-builtins" {
entry:
  %a = and i32 %bits, 2147483647
  %isnan = icmp ugt i32 %a, 2139095040
  %top = lshr i32 %bits, 16
  %nan = or i32 %top, 64
  %odd = and i32 %top, 1
  %half = add i32 %bits, 32767
  %rounded = add i32 %half, %odd
  %number = lshr i32 %rounded, 16
  %r0 = select i1 %isnan, i32 %nan, i32 %number
  %r = trunc i32 %r0 to i16
  ret i16 %r
}

; Round to odd: a second rounding to fewer bits is then the rounding of the double itself.
define internal i32 @odd_float_bits(double %x) nounwind "no-builtins" {
entry:
  %near = fptrunc double %x to float
  %back = fpext float %near to double
  %bits = bitcast float %near to i32
  %exact = fcmp ueq double %back, %x
  %near.i = bitcast double %back to i64
  %x.i = bitcast double %x to i64
  %near.a = and i64 %near.i, 9223372036854775807
  %x.a = and i64 %x.i, 9223372036854775807
  %above = icmp ugt i64 %near.a, %x.a
  %step = zext i1 %above to i32
  %toward = sub i32 %bits, %step
  %odd = or i32 %toward, 1
  %r = select i1 %exact, i32 %bits, i32 %odd
  ret i32 %r
}

define hidden half @__truncsfhf2(float %x) nounwind "no-builtins" {
  %bits = bitcast float %x to i32
  %h = call i16 @half_bits(i32 %bits)
  %r = bitcast i16 %h to half
  ret half %r
}

define hidden half @__truncdfhf2(double %x) nounwind "no-builtins" {
  %bits = call i32 @odd_float_bits(double %x)
  %h = call i16 @half_bits(i32 %bits)
  %r = bitcast i16 %h to half
  ret half %r
}

define hidden bfloat @__truncsfbf2(float %x) nounwind "no-builtins" {
  %bits = bitcast float %x to i32
  %h = call i16 @bfloat_bits(i32 %bits)
  %r = bitcast i16 %h to bfloat
  ret bfloat %r
}

define hidden bfloat @__truncdfbf2(double %x) nounwind "no-builtins" {
  %bits = call i32 @odd_float_bits(double %x)
  %h = call i16 @bfloat_bits(i32 %bits)
  %r = bitcast i16 %h to bfloat
  ret bfloat %r
}

define hidden float @__extendhfsf2(half %x) nounwind "no-builtins" {
  %h = bitcast half %x to i16
  %bits = call i32 @half_to_float_bits(i16 %h)
  %r = bitcast i32 %bits to float
  ret float %r
}

define hidden float @__gnu_h2f_ieee(i16 %h) nounwind "no-builtins" {
  %bits = call i32 @half_to_float_bits(i16 %h)
  %r = bitcast i32 %bits to float
  ret float %r
}

define hidden i16 @__gnu_f2h_ieee(float %x) nounwind "no-builtins" {
  %bits = bitcast float %x to i32
  %h = call i16 @half_bits(i32 %bits)
  ret i16 %h
}
