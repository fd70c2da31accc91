/* SPDX-License-Identifier: GPL-2.0 */
/*
 * All FPU registers of the running task, moved to and from memory.
 *
 * A file that includes this is built with -mgeneral-regs-only, so that from
 * fpu_load() to fpu_store() nothing but the kernel can touch the registers. C
 * library functions may: call none but syscall() in between.
 */
#ifndef FPU_REGS_H
#define FPU_REGS_H

#include <cpuid.h>
#include <linux/types.h>
#include <stdalign.h>
#include <stdbool.h>

#ifdef __SSE__
#error "The compiler may use the registers under test: build with -mgeneral-regs-only"
#endif

#define XFEATURE_X87		0x1
#define XFEATURE_SSE		0x2
#define XFEATURE_AVX		0x4
#define XFEATURE_OPMASK		0x20
#define XFEATURE_ZMM_HI256	0x40
#define XFEATURE_HI16_ZMM	0x80
#define XFEATURE_PKRU		0x200

#define XFEATURES_BASE		(XFEATURE_X87 | XFEATURE_SSE)
#define XFEATURES_AVX512	(XFEATURE_OPMASK | XFEATURE_ZMM_HI256 | \
				 XFEATURE_HI16_ZMM)

/* Outside 64-bit mode ZMM16 to ZMM31 can be neither loaded nor stored. */
#ifdef __x86_64__
#define XFEATURES_TESTED	(XFEATURES_BASE | XFEATURE_AVX | \
				 XFEATURES_AVX512 | XFEATURE_PKRU)
#define FPU_SUFFIX		"64"
#else
#define XFEATURES_TESTED	(XFEATURES_BASE | XFEATURE_AVX | \
				 XFEATURE_OPMASK | XFEATURE_ZMM_HI256 | \
				 XFEATURE_PKRU)
#define FPU_SUFFIX		""
#endif

/* The layout of FXSAVE, followed by that of XSAVE in standard format. */
struct fpu_image {
	alignas(64) __u16 fcw;
	__u16 fsw;
	__u8 ftw;
	__u8 reserved;
	__u16 fop;
	__u64 fip;
	__u64 fdp;
	__u32 mxcsr;
	__u32 mxcsr_mask;
	__u8 st[8][16];
	__u8 xmm[16][16];
	__u8 unused[48];
	__u8 sw_reserved[48];
	__u64 xstate_bv;
	__u64 xcomp_bv;
	__u8 header_reserved[48];
	__u8 extended[4096 - 576];
};

/* What FSAVE writes in 32-bit mode, and 32-bit frames and regsets hold. */
struct fpu_fsave {
	__u32 fcw;
	__u32 fsw;
	__u32 ftw;
	__u32 pointers[4];
	__u8 st[8][10];
};

static inline void fpu_copy(void *to, const void *from, unsigned long size)
{
	asm volatile("rep movsb"
		     : "+D" (to), "+S" (from), "+c" (size) : : "memory");
}

/* The x87 part of the image, from a format with two bits per tag. */
static inline void fpu_from_fsave(struct fpu_image *image,
				  const struct fpu_fsave *fsave)
{
	int i;

	image->fcw = fsave->fcw;
	image->fsw = fsave->fsw;
	image->ftw = 0;
	for (i = 0; i < 8; i++) {
		if ((fsave->ftw >> 2 * i & 3) != 3)
			image->ftw |= 1 << i;
		fpu_copy(image->st[i], fsave->st[i], sizeof(fsave->st[i]));
	}
}

static inline void fpu_to_fsave(struct fpu_fsave *fsave,
				const struct fpu_image *image)
{
	int i;

	fsave->fcw = image->fcw;
	fsave->fsw = image->fsw;
	fsave->ftw = 0;
	for (i = 0; i < 8; i++) {
		if (!(image->ftw & 1 << i))
			fsave->ftw |= 3 << 2 * i;
		fpu_copy(fsave->st[i], image->st[i], sizeof(fsave->st[i]));
	}
}

/* <cpuid.h> has bit_FXSAVE and the like, of CPUID.1:EDX. */
#define bit_FPU		0x1

static inline bool fpu_cpu_has(unsigned int bit)
{
	unsigned int eax, ebx, ecx, edx;

	__cpuid(1, eax, ebx, ecx, edx);
	return edx & bit;
}

static inline __u64 fpu_xgetbv(unsigned int index)
{
	__u32 low, high;

	asm volatile("xgetbv" : "=a" (low), "=d" (high) : "c" (index));
	return low | (__u64)high << 32;
}

/* The state components that XSAVE moves, or 0 where there is only FXSAVE. */
static inline __u64 fpu_xfeatures(void)
{
	unsigned int eax, ebx, ecx, edx;

	__cpuid(1, eax, ebx, ecx, edx);
	if (!(ecx & bit_OSXSAVE))
		return 0;
	return fpu_xgetbv(0) & XFEATURES_TESTED;
}

enum fpu_insn {
	INSN_X87,
	INSN_FWAIT,
	INSN_FXSAVE,
	INSN_SSE,
	INSN_AVX,
	INSN_OPMASK,
	INSN_AVX512,
	INSN_XSAVE,
	NR_INSNS
};

/* Use the FPU by one instruction that changes no register. */
static inline void fpu_use_by(enum fpu_insn insn, __u64 xfeatures)
{
	static struct fpu_image unread;

	switch (insn) {
	case INSN_FWAIT:
		asm volatile("fwait");
		break;
	case INSN_FXSAVE:
		asm volatile("fxsave" FPU_SUFFIX " %0" : "=m" (unread));
		break;
	case INSN_SSE:
		asm volatile("movups %%xmm7, %0" : "=m" (unread));
		break;
	case INSN_AVX:
		asm volatile("vmovups %%ymm7, %0" : "=m" (unread));
		break;
	case INSN_OPMASK:
		asm volatile("kmovw %%k3, %0" : "=m" (unread));
		break;
	case INSN_AVX512:
		asm volatile("vmovups %%zmm7, %0" : "=m" (unread));
		break;
	case INSN_XSAVE:
		asm volatile("xsave" FPU_SUFFIX " %0"
			     : "+m" (unread)
			     : "a" ((__u32)xfeatures), "d" (0));
		break;
	default:
		asm volatile("fnstcw %0" : "=m" (unread));
		break;
	}
}

/*
 * QEMU without KVM lets XSAVE and XRSTOR pass where CR0.TS must stop them, so
 * there they must not be used: after an interrupt, the registers may be those
 * of another task. It raises no SSE exceptions either.
 */
static inline bool fpu_under_tcg(void)
{
	unsigned int eax, ebx, ecx, edx;

	__cpuid(1, eax, ebx, ecx, edx);
	if (!(ecx & (1U << 31)))
		return false;
	__cpuid(0x40000000, eax, ebx, ecx, edx);
	return ebx == 0x54474354;		/* "TCGT" */
}

/* Where XSAVE has the upper halves of YMM0 to YMM15, and PKRU, under QEMU */
#define TCG_AVX		0
#define TCG_PKRU	(2688 - 576)

#ifdef __x86_64__
#define FPU_VECTORS	"0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15"
#else
#define FPU_VECTORS	"0,1,2,3,4,5,6,7"
#endif

static inline void fpu_load_tcg(const struct fpu_image *image, __u64 xfeatures)
{
	asm volatile("fxrstor" FPU_SUFFIX " %0" : : "m" (*image));
	if (xfeatures & XFEATURE_AVX)
		asm volatile(".irp n, " FPU_VECTORS "\n\t"
			     "vinsertf128 $1, \\n*16(%0), %%ymm\\n, %%ymm\\n\n\t"
			     ".endr"
			     : : "r" (image->extended + TCG_AVX), "m" (*image));
	if (xfeatures & XFEATURE_PKRU)
		asm volatile("wrpkru"
			     : : "a" (*(const __u32 *)(image->extended + TCG_PKRU)),
				 "c" (0), "d" (0));
}

static inline void fpu_store_tcg(struct fpu_image *image, __u64 xfeatures)
{
	__u32 pkru, zero;

	asm volatile("fxsave" FPU_SUFFIX " %0" : "+m" (*image));
	image->xstate_bv = xfeatures;
	if (xfeatures & XFEATURE_AVX)
		asm volatile(".irp n, " FPU_VECTORS "\n\t"
			     "vextractf128 $1, %%ymm\\n, \\n*16(%0)\n\t"
			     ".endr"
			     : : "r" (image->extended + TCG_AVX) : "memory");
	if (xfeatures & XFEATURE_PKRU) {
		asm volatile("rdpkru" : "=a" (pkru), "=d" (zero) : "c" (0));
		*(__u32 *)(image->extended + TCG_PKRU) = pkru;
	}
}

/* Old CPUs, and the kernel's math emulation for those without an FPU */
static inline void fpu_load_fsave(const struct fpu_image *image)
{
	struct fpu_fsave fsave;
	int i;

	fpu_to_fsave(&fsave, image);
	for (i = 0; i < 4; i++)
		fsave.pointers[i] = 0;
	asm volatile("frstor %0" : : "m" (fsave));
}

/* FSAVE leaves the registers empty. */
static inline void fpu_store_fsave(struct fpu_image *image)
{
	struct fpu_fsave fsave;

	asm volatile("fnsave %0\n\t"
		     "frstor %0" : "=m" (fsave));
	fpu_from_fsave(image, &fsave);
}

static inline void fpu_load(const struct fpu_image *image, __u64 xfeatures)
{
	if (!fpu_cpu_has(bit_FXSAVE))
		fpu_load_fsave(image);
	else if (fpu_under_tcg())
		fpu_load_tcg(image, xfeatures);
	else if (xfeatures)
		asm volatile("xrstor" FPU_SUFFIX " %0"
			     : : "m" (*image), "a" ((__u32)xfeatures), "d" (0));
	else
		asm volatile("fxrstor" FPU_SUFFIX " %0" : : "m" (*image));
}

static inline void fpu_store(struct fpu_image *image, __u64 xfeatures)
{
	if (!fpu_cpu_has(bit_FXSAVE))
		fpu_store_fsave(image);
	else if (fpu_under_tcg())
		fpu_store_tcg(image, xfeatures);
	else if (xfeatures)
		asm volatile("xsave" FPU_SUFFIX " %0"
			     : "+m" (*image) : "a" ((__u32)xfeatures), "d" (0));
	else
		asm volatile("fxsave" FPU_SUFFIX " %0" : "+m" (*image));
}

#endif
