"""The words of each language, for mutations."""

from __future__ import annotations


def _words(text: str) -> list[str]:
    return text.split()


NET = _words("""net @ % f32 [ ] { } -> return = : , x input linear conv scale add sub concat relu maxpool reshape transpose slice pad
    gather w=@w b=@b a=@a c=@c k=3x3 s=2x2 p=1,1,1,1 d=1x1 g=2 to=4 of=2x2 take=@t index=@t perm=1,0,2 axis=0 start=0
    step=-1 size=2 lo=0,1,1 hi=0,1,1 slope=0.1 slack=1 ops=2 gain=3 babs=@v wabs=@m products=2 summands=4 half=1 //
    9999999x9999999 f32[100000000000000]""")
PLAN = _words("""plan @ % candidates=all candidates=input halo bound query start merge dense input conv linear relu -> [ ] x 1@1i+0
    3@2i-1 check mask pay=none pay=relu,product behind sum ops=0 bytes=8 { } 0,0,0,0 //""")
VNNLIB = _words("""( ) assert and or not <= >= < > = == != distinct + - * / X_0 X_1 Y_0 Y_1 X[0,0] X[0,1] Y[0] Y[1] declare-const
    declare-fun declare-network declare-input declare-output declare-hidden Real float32 [1,3] [] vnnlib-version <2.0>
    set-logic true false ; " (assert(or (and )) () 1e400""")
ARTIFACT = _words("""{} " : dtype F32 F64 I64 BOOL shape data_offsets __metadata__ input_name target numerics cuda:90 interpret float64
    sha256 bytes options entries config plan device versions seconds ../x kernels/a.py null [[[[""")
LIST = [
    "onnx",
    "vnnlib",
    "timeout",
    "net.onnx",
    "p.vnnlib",
    ",",
    "\n",
    '"',
    "../",
    "/",
    "\0",
    "a" * 300,
    "a" * 5000,
    "1e9",
    "nan",
    "-1",
    "\r",
]
RESULTS = _words("""network property verdict unsat sat unknown timeout error margin null true { } [ ] : , " counterexample x y key rivals
    label statistics image radius \\u0000 1e999""") + ["\n", "\r", "9" * 400, "[" * 3000, '"' + "a" * 140000 + '"']
NUMPY = _words("""descr <f8 |u1 |O fortran_order True shape ( ) , { } 99999999999 (1000000,1000000)""")
