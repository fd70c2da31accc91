// SPDX-License-Identifier: GPL-2.0
/*
 * sLeAZY FPU: what the selftests cannot do from user space, in the debugfs
 * directory x86/fpu_test.
 *
 * raw_fxsave	512 bytes, the image that FXSAVE makes of the registers at that
 *		moment, whosever they are. The way of modules that use the FPU
 *		without kernel_fpu_begin(): at a time when the calling task is
 *		armed, this is a bug, and warned of.
 * raw_clobber	Nothing. Leaves something else in the registers, the same way.
 * registers	As raw_fxsave, with CR0.TS cleared and set again, unnoticed.
 */
#include <linux/cpufeature.h>
#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/mutex.h>

#include <asm/fpu/types.h>
#include <asm/special_insns.h>

static DEFINE_MUTEX(fpu_test_lock);
static struct fxregs_state fpu_test_image;

enum fpu_test_file {
	RAW_FXSAVE,
	RAW_CLOBBER,
	REGISTERS,
};

static void fpu_test_clobber(void)
{
	unsigned long flags;

	local_irq_save(flags);
	asm volatile("fninit\n\t"
		     "fldpi");
	if (boot_cpu_has(X86_FEATURE_XMM2))
		asm volatile(".irp n, 0,1,2,3,4,5,6,7\n\t"
			     "pcmpeqd %xmm\\n, %xmm\\n\n\t"
			     ".endr");
	local_irq_restore(flags);
}

static void fpu_test_fxsave(bool unnoticed)
{
	unsigned long flags, cr0 = 0;

	local_irq_save(flags);
	if (unnoticed) {
		cr0 = read_cr0();
		asm volatile("clts");
	}
	asm volatile("fxsave %0" : "=m" (fpu_test_image));
	if (unnoticed)
		write_cr0(cr0);
	local_irq_restore(flags);
}

static ssize_t fpu_test_read(struct file *file, char __user *to, size_t count, loff_t *pos)
{
	enum fpu_test_file which = (unsigned long)file->private_data;
	ssize_t n;

	if (which == RAW_CLOBBER) {
		fpu_test_clobber();
		return 0;
	}

	if (!boot_cpu_has(X86_FEATURE_FXSR))
		return -ENODEV;

	if (mutex_lock_interruptible(&fpu_test_lock))
		return -EINTR;
	fpu_test_fxsave(which == REGISTERS);
	n = simple_read_from_buffer(to, count, pos, &fpu_test_image, sizeof(fpu_test_image));
	mutex_unlock(&fpu_test_lock);
	return n;
}

static const struct file_operations fpu_test_fops = {
	.owner	= THIS_MODULE,
	.open	= simple_open,
	.read	= fpu_test_read,
	.llseek	= default_llseek,
};

static struct dentry *fpu_test_dir;

static int __init fpu_test_init(void)
{
	/* Built in, there is no module to say so. */
	if (!IS_MODULE(CONFIG_X86_SLEAZY_FPU_TEST))
		add_taint(TAINT_TEST, LOCKDEP_STILL_OK);

	fpu_test_dir = debugfs_create_dir("fpu_test", arch_debugfs_dir);
	debugfs_create_file("raw_fxsave", 0400, fpu_test_dir, (void *)RAW_FXSAVE, &fpu_test_fops);
	debugfs_create_file("raw_clobber", 0400, fpu_test_dir, (void *)RAW_CLOBBER, &fpu_test_fops);
	debugfs_create_file("registers", 0400, fpu_test_dir, (void *)REGISTERS, &fpu_test_fops);
	return 0;
}
late_initcall(fpu_test_init);

static void __exit fpu_test_exit(void)
{
	debugfs_remove(fpu_test_dir);
}
module_exit(fpu_test_exit);

MODULE_DESCRIPTION("Access to the FPU registers for the selftests of the sLeAZY FPU");
MODULE_LICENSE("GPL");
/* It shows other tasks' registers. */
MODULE_INFO(test, "Y");
