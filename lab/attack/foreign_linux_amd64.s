#include "textflag.h"

// func int80(nr uint32) int64
TEXT ·int80(SB), NOSPLIT, $0-16
	MOVL nr+0(FP), AX
	XORL BX, BX
	XORL CX, CX
	XORL DX, DX
	XORL SI, SI
	XORL DI, DI
	INT  $0x80
	MOVQ AX, ret+8(FP)
	RET
