// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit test of what CR0.TS gates: which instructions raise #NM, on the CPU
 * that runs it.
 *
 * The sLeAZY FPU leaves one task's registers in place while another runs, and
 * trusts CR0.TS to keep them apart. It also executes what the manuals say is
 * not gated. A CPU, emulator or hypervisor that differs fails here by name.
 *
 * AMD's manual (APM vol. 2, 3.1.1 "Task Switched (TS) Bit") has one rule for
 * x87 and media instructions; Intel's (SDM) is quoted for each row.
 */
#include <linux/cpufeature.h>
#include <linux/irqflags.h>
#include <linux/module.h>
#include <linux/objtool.h>
#include <linux/processor.h>
#include <linux/string.h>
#include <linux/types.h>

#include <asm/asm.h>
#include <asm/desc.h>
#include <asm/fpu/api.h>
#include <asm/fpu/types.h>
#include <asm/fpu/xcr.h>
#include <asm/ibt.h>
#include <asm/msr.h>
#include <asm/special_insns.h>
#include <asm/trapnr.h>

#include <kunit/test.h>

/*
 * What EAX holds for each instruction: for those of XSAVE, it selects the state
 * components. x87 and SSE have no more than FXSAVE has, and the header.
 */
#define RFBM	(XFEATURE_MASK_FP | XFEATURE_MASK_SSE)

static struct {
	u8 bytes[PAGE_SIZE];
} area __aligned(64);

/* Exactly one instruction each. Bytes are for what older assemblers lack. */
#define INSN(name, insn)						\
static void name(u32 *eax, u32 ecx)					\
{									\
	u32 edx = 0;							\
									\
	asm volatile(insn						\
		     : "+a" (*eax), "+c" (ecx), "+d" (edx),		\
		       [area] "+m" (area)				\
		     : "D" (&area));					\
}

INSN(do_fld1,		"fld1")
INSN(do_fninit,		"fninit")
INSN(do_fnstcw,		"fnstcw %[area]")
INSN(do_fnsave,		"fnsave %[area]")
INSN(do_frstor,		"frstor %[area]")
INSN(do_fwait,		"fwait")
INSN(do_movq,		"movq %%mm0, %[area]")
INSN(do_emms,		"emms")
INSN(do_movups,		"movups %%xmm0, %[area]")
INSN(do_stmxcsr,	"stmxcsr %[area]")
INSN(do_ldmxcsr,	"ldmxcsr %[area]")
INSN(do_pause,		"pause")
INSN(do_prefetch,	"prefetcht0 %[area]")
INSN(do_sfence,		"sfence")
INSN(do_lfence,		"lfence")
INSN(do_mfence,		"mfence")
INSN(do_movnti,		"movnti %%eax, %[area]")
INSN(do_clflush,	"clflush %[area]")
INSN(do_crc32,		"crc32l %%ecx, %%eax")
INSN(do_popcnt,		"popcntl %%ecx, %%eax")
INSN(do_andn,		"andn %%ecx, %%eax, %%eax")
INSN(do_vmovups_xmm,	"vmovups %%xmm0, %[area]")
INSN(do_vmovups_ymm,	"vmovups %%ymm0, %[area]")
INSN(do_vzeroupper,	"vzeroupper")
INSN(do_vmovups_zmm,	"vmovups %%zmm0, %[area]")
INSN(do_kmovw_reg,	"kmovw %%k1, %%eax")
INSN(do_kmovw_mem,	"kmovw %%k1, %[area]")
INSN(do_fxsave,		"fxsave %[area]")
INSN(do_fxrstor,	"fxrstor %[area]")
INSN(do_xsave,		"xsave %[area]")
INSN(do_xsaveopt,	"xsaveopt %[area]")
INSN(do_xsavec,		"xsavec %[area]")
INSN(do_xsaves,		"xsaves %[area]")
INSN(do_xrstor,		"xrstor %[area]")
INSN(do_xrstors,	"xrstors %[area]")
INSN(do_xgetbv,		"xgetbv")
INSN(do_rdpkru,		".byte 0x0f,0x01,0xee")
INSN(do_wrpkru,		".byte 0x0f,0x01,0xef")
INSN(do_bndmk,		".byte 0xf3,0x0f,0x1b,0x07")	/* bndmk (%rdi), %bnd0 */
INSN(do_bndmov,		".byte 0x66,0x0f,0x1b,0x07")	/* bndmov %bnd0, (%rdi) */
#if BASE_VERSION >= 612
INSN(do_rdmsr,		"rdmsr")
#endif
#ifdef CONFIG_X86_64
INSN(do_vmovups_zmm16,	"vmovups %%zmm16, %[area]")
INSN(do_ldtilecfg,	".byte 0xc4,0xe2,0x78,0x49,0x07")	/* ldtilecfg (%rdi) */
INSN(do_sttilecfg,	".byte 0xc4,0xe2,0x79,0x49,0x07")	/* sttilecfg (%rdi) */
INSN(do_tilerelease,	".byte 0xc4,0xe2,0x78,0x49,0xc0")
#endif

static const struct insn {
	const char *name;
	void (*execute)(u32 *eax, u32 ecx);
	bool gated;
	struct {
		unsigned int bit;
		const char *name;
	} feature;
	const char *manual;
	/* The components of XCR0 without which it is #UD, or a NOP */
	u32 xcr0;
	u32 ecx;
	/* Makes what execute takes, in area, EAX or a register */
	void (*before)(u32 *eax, u32 ecx);
} insns[] = {
#define GATED		true
#define NOT_GATED	false
#define FEATURE(name)	{ X86_FEATURE_##name, #name }
#define AVX512		(XFEATURE_MASK_SSE | XFEATURE_MASK_YMM | XFEATURE_MASK_AVX512)
#define AVX		(XFEATURE_MASK_SSE | XFEATURE_MASK_YMM)
#define MPX		(XFEATURE_MASK_BNDREGS | XFEATURE_MASK_BNDCSR)

	{ "FLD1", do_fld1, GATED, FEATURE(FPU), "vol. 3, 2.5" },
	{ "FNINIT", do_fninit, GATED, FEATURE(FPU), "vol. 3, 2.5" },
	{ "FNSTCW", do_fnstcw, GATED, FEATURE(FPU), "vol. 3, 2.5" },
	{ "FNSAVE", do_fnsave, GATED, FEATURE(FPU), "vol. 3, 2.5" },
	{ "FRSTOR", do_frstor, GATED, FEATURE(FPU), "vol. 3, 2.5", .before = do_fnsave },
	{ "FWAIT with CR0.MP", do_fwait, GATED, FEATURE(FPU), "vol. 2, WAIT" },
	{ "MOVQ mm", do_movq, GATED, FEATURE(MMX), "vol. 3, 2.5" },
	{ "EMMS", do_emms, GATED, FEATURE(MMX), "vol. 3, 2.5" },
	{ "MOVUPS", do_movups, GATED, FEATURE(XMM), "vol. 3, 2.5" },
	{ "STMXCSR", do_stmxcsr, GATED, FEATURE(XMM), "vol. 2, STMXCSR" },
	{ "LDMXCSR", do_ldmxcsr, GATED, FEATURE(XMM), "vol. 2, LDMXCSR", .before = do_stmxcsr },

	/* Of SSE by name, but without its registers */
	{ "PAUSE", do_pause, NOT_GATED, FEATURE(FPU), "vol. 3, 2.5" },
	{ "PREFETCHT0", do_prefetch, NOT_GATED, FEATURE(XMM), "vol. 3, 2.5" },
	{ "SFENCE", do_sfence, NOT_GATED, FEATURE(XMM), "vol. 3, 2.5" },
	{ "LFENCE", do_lfence, NOT_GATED, FEATURE(XMM2), "vol. 3, 2.5" },
	{ "MFENCE", do_mfence, NOT_GATED, FEATURE(XMM2), "vol. 3, 2.5" },
	{ "MOVNTI", do_movnti, NOT_GATED, FEATURE(XMM2), "vol. 3, 2.5" },
	{ "CLFLUSH", do_clflush, NOT_GATED, FEATURE(CLFLUSH), "vol. 3, 2.5" },
	{ "CRC32", do_crc32, NOT_GATED, FEATURE(XMM4_2), "vol. 3, 2.5" },
	{ "POPCNT", do_popcnt, NOT_GATED, FEATURE(POPCNT), "vol. 3, 2.5" },
	/* Has a VEX prefix as AVX has, but general registers */
	{ "ANDN", do_andn, NOT_GATED, FEATURE(BMI1), "vol. 2, exceptions type 13", AVX },

	{ "VMOVUPS xmm", do_vmovups_xmm, GATED, FEATURE(AVX), "vol. 2, exceptions type 4", AVX },
	{ "VMOVUPS ymm", do_vmovups_ymm, GATED, FEATURE(AVX), "vol. 2, exceptions type 4", AVX },
	{ "VZEROUPPER", do_vzeroupper, GATED, FEATURE(AVX), "vol. 2, exceptions type 8", AVX },
	{ "VMOVUPS zmm", do_vmovups_zmm, GATED, FEATURE(AVX512F),
	  "vol. 2, exceptions type E4.nb", AVX512 },
#ifdef CONFIG_X86_64
	{ "VMOVUPS zmm16", do_vmovups_zmm16, GATED, FEATURE(AVX512F),
	  "vol. 2, exceptions type E4.nb", AVX512 },
#endif
	{ "KMOVW k to register", do_kmovw_reg, GATED, FEATURE(AVX512F),
	  "vol. 2, exceptions type K20", AVX512 },
	{ "KMOVW k to memory", do_kmovw_mem, GATED, FEATURE(AVX512F),
	  "vol. 2, exceptions type K21", AVX512 },

	{ "FXSAVE", do_fxsave, GATED, FEATURE(FXSR), "vol. 2, FXSAVE" },
	{ "FXRSTOR", do_fxrstor, GATED, FEATURE(FXSR), "vol. 2, FXRSTOR", .before = do_fxsave },
	{ "XSAVE", do_xsave, GATED, FEATURE(OSXSAVE), "vol. 1, 13.7" },
	{ "XSAVEOPT", do_xsaveopt, GATED, FEATURE(XSAVEOPT), "vol. 1, 13.9" },
	{ "XSAVEC", do_xsavec, GATED, FEATURE(XSAVEC), "vol. 1, 13.10" },
	{ "XSAVES", do_xsaves, GATED, FEATURE(XSAVES), "vol. 1, 13.11" },
	{ "XRSTOR", do_xrstor, GATED, FEATURE(OSXSAVE), "vol. 1, 13.8", .before = do_xsave },
	{ "XRSTORS", do_xrstors, GATED, FEATURE(XSAVES), "vol. 1, 13.12", .before = do_xsaves },

	{ "XGETBV(0)", do_xgetbv, NOT_GATED, FEATURE(OSXSAVE), "vol. 2, XGETBV" },
	{ "XGETBV(1)", do_xgetbv, NOT_GATED, FEATURE(XGETBV1), "vol. 2, XGETBV",
	  .ecx = XCR_XFEATURE_IN_USE_MASK },
	{ "RDPKRU", do_rdpkru, NOT_GATED, FEATURE(OSPKE), "vol. 2, RDPKRU" },
	{ "WRPKRU", do_wrpkru, NOT_GATED, FEATURE(OSPKE), "vol. 2, WRPKRU", .before = do_rdpkru },
	{ "BNDMK", do_bndmk, NOT_GATED, FEATURE(MPX), "vol. 2, BNDMK", MPX },
	{ "BNDMOV", do_bndmov, NOT_GATED, FEATURE(MPX), "vol. 2, BNDMOV", MPX, .before = do_bndmk },
#if BASE_VERSION >= 612
	/*
	 * CET state. RDSSP would show nothing: it is a NOP, as the kernel has no
	 * shadow stack of its own.
	 */
	{ "RDMSR of U_CET", do_rdmsr, NOT_GATED, FEATURE(SHSTK), "vol. 2, RDMSR",
	  .ecx = MSR_IA32_U_CET },
	{ "RDMSR of PL3_SSP", do_rdmsr, NOT_GATED, FEATURE(SHSTK), "vol. 2, RDMSR",
	  .ecx = MSR_IA32_PL3_SSP },
#endif
#ifdef CONFIG_X86_64
	/* An area of zeros is the initial configuration. */
	{ "LDTILECFG", do_ldtilecfg, NOT_GATED, FEATURE(AMX_TILE),
	  "vol. 2, exceptions class AMX-E1", XFEATURE_MASK_XTILE },
	{ "STTILECFG", do_sttilecfg, NOT_GATED, FEATURE(AMX_TILE),
	  "vol. 2, exceptions class AMX-E2", XFEATURE_MASK_XTILE },
	{ "TILERELEASE", do_tilerelease, NOT_GATED, FEATURE(AMX_TILE),
	  "vol. 2, exceptions class AMX-E6", XFEATURE_MASK_XTILE },
#endif
};

static void insn_name(const struct insn *insn, char *desc)
{
	strscpy(desc, insn->name, KUNIT_PARAM_DESC_SIZE);
}

KUNIT_ARRAY_PARAM(insns, insns, insn_name);

/*
 * The gate of #NM while a test runs. The kernel's own handler would complain,
 * and kill. Counts, and has the instruction executed again without CR0.TS.
 */
asmlinkage void fpu_gating_nm(void);
__visible unsigned int fpu_gating_nm_count;

#ifdef CONFIG_X86_64
#define NM_COUNT "fpu_gating_nm_count(%rip)"
#else
#define NM_COUNT "fpu_gating_nm_count"
#endif

asm(".pushsection .text, \"ax\"\n"
	".globl fpu_gating_nm\n"
	".type fpu_gating_nm, @function\n"
	"fpu_gating_nm:\n"
		ASM_ENDBR
	"	incl " NM_COUNT "\n"
	"	clts\n"
	"	" __ASM_SIZE(iret) "\n"
	".size fpu_gating_nm, . - fpu_gating_nm\n"
	".popsection\n");

/* Has the stack of an exception, not that of a function */
STACK_FRAME_NON_STANDARD(fpu_gating_nm);

static gate_desc test_idt[IDT_ENTRIES] __aligned(PAGE_SIZE);

struct outcome {
	unsigned int nm_count;
	bool ts_after;
};

static struct outcome execute(const struct insn *insn, u32 eax, unsigned long cr0)
{
	unsigned long old_cr0 = native_read_cr0();
	struct outcome outcome;

	WRITE_ONCE(fpu_gating_nm_count, 0);
	native_write_cr0(cr0);
	insn->execute(&eax, insn->ecx);
	outcome.ts_after = native_read_cr0() & X86_CR0_TS;
	native_write_cr0(old_cr0);
	outcome.nm_count = READ_ONCE(fpu_gating_nm_count);

	return outcome;
}

/* Execute @insn with CR0.TS clear, then with CR0.TS set. */
static void execute_twice(const struct insn *insn, struct outcome *clear, struct outcome *set)
{
	const struct desc_ptr test_idtr = {
		.size = sizeof(test_idt) - 1,
		.address = (unsigned long)test_idt,
	};
	struct desc_ptr idtr;
	unsigned long flags;
	unsigned long cr0;
	u32 eax = RFBM;

	/* Nobody's registers get lost, and what is in them is defined. */
	kernel_fpu_begin_mask(KFPU_387 | KFPU_MXCSR);

	memset(&area, 0, sizeof(area));
	store_idt(&idtr);
	memcpy(test_idt, (void *)idtr.address, sizeof(test_idt));
	pack_gate(&test_idt[X86_TRAP_NM], GATE_INTERRUPT, (unsigned long)fpu_gating_nm,
		  0, 0, __KERNEL_CS);

	local_irq_save(flags);
	/* An NMI has its gate here as well. Without LBRs to save, it leaves the FPU alone. */
	native_load_idt(&test_idtr);
	/*
	 * MPX instructions are NOPs in the kernel without EN (bit 0), and each RET
	 * clears the bounds without BNDPRESERVE (bit 1).
	 */
	if (insn->xcr0 & XFEATURE_MASK_BNDREGS)
		wrmsr(MSR_IA32_BNDCFGS, 3, 0);

	if (insn->before)
		insn->before(&eax, insn->ecx);
	cr0 = native_read_cr0() | X86_CR0_MP;
	*clear = execute(insn, eax, cr0);
	*set = execute(insn, eax, cr0 | X86_CR0_TS);

	if (insn->xcr0 & XFEATURE_MASK_BNDREGS)
		wrmsr(MSR_IA32_BNDCFGS, 0, 0);
	native_load_idt(&idtr);
	local_irq_restore(flags);
	kernel_fpu_end();
}

static void skip_unless_possible(struct kunit *test, const struct insn *insn)
{
	u64 xcr0 = 0;

	if (!boot_cpu_has(X86_FEATURE_FPU))
		kunit_skip(test, "no FPU");
	if (cpu_feature_enabled(X86_FEATURE_XENPV))
		kunit_skip(test, "Xen has the IDT");
	if (cpu_feature_enabled(X86_FEATURE_ARCH_LBR))
		kunit_skip(test, "perf uses XSAVES in NMIs for architectural LBRs");
#if BASE_VERSION >= 612
	if (cpu_feature_enabled(X86_FEATURE_FRED))
		kunit_skip(test, "FRED is enabled, there is no IDT to put a handler in");
#endif

	if (!boot_cpu_has(insn->feature.bit))
		kunit_skip(test, "no CPU feature %s", insn->feature.name);
	if (boot_cpu_has(X86_FEATURE_OSXSAVE))
		xcr0 = xgetbv(XCR_XFEATURE_ENABLED_MASK);
	if (insn->xcr0 & ~xcr0)
		kunit_skip(test, "XCR0 is 0x%llx, without 0x%llx", xcr0, insn->xcr0 & ~xcr0);
}

static void raises_nm(struct kunit *test)
{
	const struct insn *insn = test->param_value;
	const struct cpuinfo_x86 *c = &boot_cpu_data;
	struct outcome clear, set;

	skip_unless_possible(test, insn);
	execute_twice(insn, &clear, &set);

	KUNIT_EXPECT_EQ_MSG(test, clear.nm_count, 0,
			    "%s raises #NM although CR0.TS is clear", insn->name);
	KUNIT_EXPECT_EQ_MSG(test, set.nm_count, insn->gated,
			    "%s: CR0.TS %s, differs from SDM %s\n%s family 0x%x model 0x%x '%s'%s",
			    insn->name, set.nm_count ? "gates it" : "does not gate it",
			    insn->manual, c->x86_vendor_id, c->x86, c->x86_model, c->x86_model_id,
			    boot_cpu_has(X86_FEATURE_HYPERVISOR) ? ", under a hypervisor" :
								   ", no hypervisor bit");
	/* The second witness: it is the handler that clears TS, and nothing else. */
	KUNIT_EXPECT_EQ_MSG(test, set.ts_after, !set.nm_count,
			    "CR0.TS is %d after %u #NM", set.ts_after, set.nm_count);
}

static struct kunit_case fpu_gating_cases[] = {
	KUNIT_CASE_PARAM(raises_nm, insns_gen_params),
	{}
};

static struct kunit_suite fpu_gating_suite = {
	.name = "fpu_gating",
	.test_cases = fpu_gating_cases,
};

kunit_test_suite(fpu_gating_suite);

MODULE_DESCRIPTION("KUnit test of which instructions CR0.TS gates");
MODULE_LICENSE("GPL");
