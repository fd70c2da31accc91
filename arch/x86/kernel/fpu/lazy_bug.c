// SPDX-License-Identifier: GPL-2.0
/*
 * X86_BUG_LAZY_FP, which CPUs have it: an instruction that raises #NM because of
 * CR0.TS may have used the registers speculatively before (CVE-2018-3665,
 * INTEL-SA-00145).
 */
#include <linux/cpufeature.h>

#include <asm/cpu_device_id.h>
#include <asm/fpu/lazy.h>
#include <asm/intel-family.h>

#if BASE_VERSION >= 612
#define IMMUNE_INTEL(model)	X86_MATCH_VFM(INTEL_##model, NULL)
#else
#define IMMUNE_INTEL(model)	X86_MATCH_INTEL_FAM6_MODEL(model, NULL)
#endif

/*
 * The CPUs that do not. Any other has the bug, so a new or forgotten one is safe.
 *
 * Left out of what is known to be immune: Goldmont, Goldmont Plus and later
 * Atoms, which have X86_BUG_RFDS, and so stale registers that can be read in
 * another way.
 */
static const struct x86_cpu_id lazy_fp_immune[] __initconst = {
	X86_MATCH_VENDOR_FAM(AMD, X86_FAMILY_ANY, NULL),
	X86_MATCH_VENDOR_FAM(HYGON, X86_FAMILY_ANY, NULL),

	/* In order, and NetBurst. The advisory is about Core. */
	X86_MATCH_VENDOR_FAM(INTEL, 4, NULL),
	X86_MATCH_VENDOR_FAM(INTEL, 5, NULL),
	X86_MATCH_VENDOR_FAM(INTEL, 15, NULL),

	IMMUNE_INTEL(ATOM_BONNELL),
	IMMUNE_INTEL(ATOM_BONNELL_MID),
	IMMUNE_INTEL(ATOM_SALTWELL),
	IMMUNE_INTEL(ATOM_SALTWELL_MID),
	IMMUNE_INTEL(ATOM_SALTWELL_TABLET),
	IMMUNE_INTEL(ATOM_SILVERMONT),
	IMMUNE_INTEL(ATOM_SILVERMONT_D),
	IMMUNE_INTEL(ATOM_SILVERMONT_MID),
	IMMUNE_INTEL(ATOM_AIRMONT),
#if BASE_VERSION >= 703
	IMMUNE_INTEL(ATOM_SILVERMONT_MID2),
#else
	IMMUNE_INTEL(ATOM_AIRMONT_MID),
#endif
	IMMUNE_INTEL(XEON_PHI_KNL),
	IMMUNE_INTEL(XEON_PHI_KNM),
	{}
};

/* Called for the boot CPU, when its model and its features are known. */
void __init __fpu_lazy_set_bug(void)
{
	/* The model of a guest on Intel is hearsay: it may be moved to any. */
	if (boot_cpu_data.x86_vendor == X86_VENDOR_INTEL &&
	    boot_cpu_has(X86_FEATURE_HYPERVISOR)) {
		setup_force_cpu_bug(X86_BUG_LAZY_FP);
		return;
	}

	if (!x86_match_cpu(lazy_fp_immune))
		setup_force_cpu_bug(X86_BUG_LAZY_FP);
}
