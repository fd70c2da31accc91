// SPDX-License-Identifier: GPL-2.0
/*
 * A task that runs a guest keeps its FPU registers, and so does the guest. KVM
 * swaps the one for the other in ioctls of tasks that may not have used theirs
 * for long, and whose registers are then in memory, with CR0.TS set.
 *
 * The guest is a loop in real mode that compares x87 registers, MXCSR and XMM0
 * to XMM7 with what they must be. What it cannot name it has all the same, and
 * KVM_GET_XSAVE tells.
 */
#include <fcntl.h>
#include <linux/if_alg.h>
#include <linux/kvm.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fpu_histories.h"

#define NO_KVM		"needs /dev/kvm: CONFIG_KVM_AMD or CONFIG_KVM_INTEL, and a CPU with it"
#define TEST_FPU	"/sys/kernel/debug/selftest_helpers/test_fpu"

#define NR_VCPUS	2
#define MILLISECONDS	3000

/* What the guest tells by an OUT to the port, which ends KVM_RUN */
#define PORT_ALL_RIGHT	0x10
#define PORT_WRONG	0x11

#define CHECKS_PER_EXIT	20
#define SEGMENT_SIZE	0x10000
#define NM_VECTOR	7
#define CR0_ET		0x10
#define CR4_OSFXSR	0x200

/* What FXSAVE writes outside 64-bit mode */
#define GUEST_SEES	offsetof(struct fpu_image, xmm[8])

/* The memory of a vCPU, at the start of a segment of its own */
struct guest {
	__u32 vectors[1024];
	char code[4096];
	char want[512];
	char got[512];
	__u32 load;		/* the host asks for the registers to be loaded */
	__u32 lazy;		/* the host asks for CR0.TS to be set */
	__u32 ts_sets;
	__u32 traps;
	__u32 checks;
};

struct vcpu {
	struct fpu_task host;	/* the thread that runs it */
	struct fpu_task regs;	/* of the guest */
	struct fpu_image pattern;
	struct kvm_fpu fpu;
	char stack[32768];
	struct guest *guest;
	struct kvm_run *run;
	unsigned int nr;
	unsigned int exits;
	bool stopped;
	int cpu;
	int fd;
};

/* The control and status words, MXCSR, all registers: the rest need not be kept. */
#define COMPARE(offset, size)				\
	"movw $%c[want] + " #offset ", %%si\n\t"	\
	"movw $%c[got] + " #offset ", %%di\n\t"		\
	"movw $" #size ", %%cx\n\t"			\
	"repe cmpsb\n\t"				\
	"jne wrong%=\n\t"

static int kvm_fd, vm_fd;
static void *memory;

/*
 * The code is in .rodata, to be copied. In lazy mode the guest sets CR0.TS after
 * each check, so that it exits to the host with CR0.TS set, and then its first
 * FPU instruction must trap, once.
 */
static void guest_install(struct guest *guest, unsigned int segment)
{
	unsigned long size, trap;
	const char *code;

	asm volatile(".pushsection .rodata\n"
		     ".code16\n"
		     "start%=:\n\t"
		     "cmpl $0, %c[load]\n\t"
		     "je loaded%=\n\t"
		     "movl $0, %c[load]\n\t"
		     "fxrstor %c[want]\n"
		     "loaded%=:\n\t"
		     "movw %[checks_per_exit], %%bp\n"
		     "check%=:\n\t"
		     "fxsave %c[got]\n\t"
		     COMPARE(0, 5)
		     COMPARE(24, 4)
		     COMPARE(32, 256)
		     "movl %c[ts_sets], %%eax\n\t"
		     "cmpl %c[traps], %%eax\n\t"
		     "jne wrong%=\n\t"
		     "incl %c[checks]\n\t"
		     "cmpl $0, %c[lazy]\n\t"
		     "je not_lazy%=\n\t"
		     "incl %c[ts_sets]\n\t"
		     "movl %%cr0, %%eax\n\t"
		     "orb $8, %%al\n\t"
		     "movl %%eax, %%cr0\n"
		     "not_lazy%=:\n\t"
		     "movw $5000, %%cx\n"
		     "spin%=:\n\t"
		     "loop spin%=\n\t"
		     "decw %%bp\n\t"
		     "jne check%=\n\t"
		     "outb %%al, %[all_right]\n\t"
		     "jmp start%=\n"
		     "wrong%=:\n\t"
		     "outb %%al, %[wrong]\n\t"
		     "jmp wrong%=\n"
		     "trap%=:\n\t"
		     "incl %c[traps]\n\t"
		     "clts\n\t"
		     "iret\n"
		     "end%=:\n"
		     ".code64\n"
		     ".popsection\n\t"
		     "lea start%=(%%rip), %[code]\n\t"
		     "mov $end%= - start%=, %[size]\n\t"
		     "mov $trap%= - start%=, %[trap]"
		     : [code] "=r" (code), [size] "=r" (size), [trap] "=r" (trap)
		     : [want] "i" (offsetof(struct guest, want)),
		       [got] "i" (offsetof(struct guest, got)),
		       [load] "i" (offsetof(struct guest, load)),
		       [lazy] "i" (offsetof(struct guest, lazy)),
		       [ts_sets] "i" (offsetof(struct guest, ts_sets)),
		       [traps] "i" (offsetof(struct guest, traps)),
		       [checks] "i" (offsetof(struct guest, checks)),
		       [checks_per_exit] "i" (CHECKS_PER_EXIT),
		       [all_right] "i" (PORT_ALL_RIGHT),
		       [wrong] "i" (PORT_WRONG));
	fpu_copy(guest->code, code, size);
	guest->vectors[NM_VECTOR] = segment << 16 | (offsetof(struct guest, code) + trap);
}

static bool have_kvm(void)
{
	kvm_fd = open("/dev/kvm", O_RDWR);
	return kvm_fd >= 0;
}

/* From here on, the tasks hold their patterns: no C library but syscall(). */
static long call(int fd, unsigned long request, void *argument)
{
	return syscall(SYS_ioctl, fd, request, argument);
}

static void *map(int fd, unsigned long size)
{
	int flags = fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
	long address = syscall(SYS_mmap, NULL, size, PROT_READ | PROT_WRITE, flags, fd, 0);

	return address < 0 ? NULL : (void *)address;
}

static bool vm_create(void)
{
	static struct kvm_userspace_memory_region region = {
		.memory_size = NR_VCPUS * SEGMENT_SIZE,
	};

	memory = map(-1, region.memory_size);
	region.userspace_addr = (unsigned long)memory;
	vm_fd = call(kvm_fd, KVM_CREATE_VM, NULL);
	/* Somewhere else: Intel CPUs may need it for real mode. */
	return memory && vm_fd >= 0 && !call(vm_fd, KVM_SET_TSS_ADDR, (void *)0xfffbd000) &&
	       !call(vm_fd, KVM_SET_USER_MEMORY_REGION, &region);
}

/* Real mode, with all segments and the vectors in the memory of this vCPU */
static bool vcpu_set_registers(struct vcpu *vcpu)
{
	static struct kvm_sregs sregs;
	static struct kvm_regs regs;
	struct kvm_segment *segments[] = {
		&sregs.cs, &sregs.ds, &sregs.es, &sregs.fs, &sregs.gs, &sregs.ss,
	};
	unsigned int i;

	if (call(vcpu->fd, KVM_GET_SREGS, &sregs))
		return false;
	for (i = 0; i < 6; i++) {
		segments[i]->base = vcpu->nr * SEGMENT_SIZE;
		segments[i]->selector = segments[i]->base >> 4;
	}
	sregs.idt.base = sregs.cs.base;
	sregs.cr0 = CR0_ET;
	sregs.cr4 = CR4_OSFXSR;
	regs.rip = offsetof(struct guest, code);
	regs.rsp = 0xfff0;
	regs.rflags = 2;

	guest_install(vcpu->guest, sregs.cs.selector);
	return !call(vcpu->fd, KVM_SET_SREGS, &sregs) && !call(vcpu->fd, KVM_SET_REGS, &regs);
}

static bool vcpu_create(struct vcpu *vcpu)
{
	static struct {
		struct kvm_cpuid2 head;
		struct kvm_cpuid_entry2 entries[256];
	} cpuid;

	cpuid.head.nent = 256;
	vcpu->guest = memory + vcpu->nr * SEGMENT_SIZE;
	vcpu->fd = call(vm_fd, KVM_CREATE_VCPU, (void *)(unsigned long)vcpu->nr);
	if (vcpu->fd < 0)
		return false;
	vcpu->run = map(vcpu->fd, call(kvm_fd, KVM_GET_VCPU_MMAP_SIZE, NULL));
	/* KVM_GET_XSAVE leaves out what the vCPU does not have. */
	return vcpu->run && !call(kvm_fd, KVM_GET_SUPPORTED_CPUID, &cpuid) &&
	       !call(vcpu->fd, KVM_SET_CPUID2, &cpuid) && vcpu_set_registers(vcpu);
}

/* Let the guest load a pattern. All else in its registers stays as it was. */
static void vcpu_load(struct vcpu *vcpu, unsigned int round)
{
	fpu_pattern(&vcpu->pattern, round);
	fpu_copy(&vcpu->regs.want, &vcpu->pattern, GUEST_SEES);
	vcpu->regs.want.xstate_bv |= XFEATURES_BASE;
	fpu_copy(vcpu->guest->want, &vcpu->regs.want, GUEST_SEES);
	vcpu->guest->load = 1;
}

/* Until the guest says that all is right, CHECKS_PER_EXIT times. */
static bool vcpu_run(struct vcpu *vcpu)
{
	vcpu->exits++;
	vcpu->stopped = call(vcpu->fd, KVM_RUN, NULL) || vcpu->run->exit_reason != KVM_EXIT_IO ||
			vcpu->run->io.port != PORT_ALL_RIGHT;
	if (vcpu->stopped) {
		fpu_copy(&vcpu->regs.got, &vcpu->regs.want, sizeof(vcpu->regs.got));
		fpu_copy(&vcpu->regs.got, vcpu->guest->got, GUEST_SEES);
		fpu_check(&vcpu->regs);
	}
	return !vcpu->stopped;
}

/* All that the guest has by KVM's account. It has never set PKRU. */
static bool vcpu_get_xsave(struct vcpu *vcpu)
{
	/* The first wrong reading is to stay. */
	if (vcpu->regs.wrong || call(vcpu->fd, KVM_GET_XSAVE, &vcpu->regs.got))
		return false;
	return fpu_check(&vcpu->regs);
}

static bool vcpu_set_xsave(struct vcpu *vcpu)
{
	struct fpu_image *want = &vcpu->regs.want;
	unsigned int eax, ebx, ecx, edx;

	fpu_pattern(want, 1);
	if (want->xstate_bv & XFEATURE_PKRU) {
		__cpuid_count(0xd, __builtin_ctz(XFEATURE_PKRU), eax, ebx, ecx, edx);
		*(__u32 *)((char *)want + ebx) = 0;
		want->xstate_bv &= ~(__u64)XFEATURE_PKRU;
	}
	fpu_copy(vcpu->guest->want, want, GUEST_SEES);
	return !call(vcpu->fd, KVM_SET_XSAVE, want);
}

/* struct kvm_fpu has all that FXSAVE has, but KVM_GET_FPU leaves MXCSR out. */
static bool vcpu_get_fpu(struct vcpu *vcpu)
{
	struct fpu_image *got = &vcpu->regs.got;
	struct kvm_fpu *fpu = &vcpu->fpu;

	if (call(vcpu->fd, KVM_GET_FPU, fpu))
		return false;
	fpu_copy(got, &vcpu->regs.want, sizeof(*got));
	got->fcw = fpu->fcw;
	got->fsw = fpu->fsw;
	got->ftw = fpu->ftwx;
	fpu_copy(got->st, fpu->fpr, sizeof(got->st));
	fpu_copy(got->xmm, fpu->xmm, sizeof(got->xmm));
	return fpu_check(&vcpu->regs);
}

static bool vcpu_set_fpu(struct vcpu *vcpu)
{
	struct fpu_image *want = &vcpu->regs.want;
	struct kvm_fpu *fpu = &vcpu->fpu;
	__u32 mxcsr = want->mxcsr;

	fpu_pattern(&vcpu->pattern, 2);
	fpu_copy(want, &vcpu->pattern, offsetof(struct fpu_image, unused));
	want->mxcsr = mxcsr;
	fpu->fcw = want->fcw;
	fpu->fsw = want->fsw;
	fpu->ftwx = want->ftw;
	fpu_copy(fpu->fpr, want->st, sizeof(want->st));
	fpu_copy(fpu->xmm, want->xmm, sizeof(want->xmm));
	fpu_copy(vcpu->guest->want, want, GUEST_SEES);
	return !call(vcpu->fd, KVM_SET_FPU, fpu);
}

/* Not to be called while a pattern is held. */
static unsigned int vcpu_wrong(const struct vcpu *vcpu)
{
	unsigned int wrong = fpu_wrong("guest", &vcpu->regs);

	if (!vcpu->stopped)
		return wrong;
	fprintf(stderr, "# guest: run %u ended by exit %u, port %#x, %u traps, expected %u\n",
		vcpu->exits, vcpu->run->exit_reason, vcpu->run->io.port,
		vcpu->guest->traps, vcpu->guest->ts_sets);
	return ~0U;
}

/* The subject has its history when it runs the guest, and when it reads. */
TEST_F_TIMEOUT(history, host_armed, 60)
{
	struct vcpu *vcpu = fpu_share(sizeof(*vcpu));
	unsigned int rounds = 6 * fpu_rounds(), round, run;

	if (!have_kvm())
		SKIP(return, NO_KVM);

	ASSERT_TRUE(vcpu && vm_create() && vcpu_create(vcpu));
	for (round = 0; round < rounds; round++) {
		vcpu_load(vcpu, 100 + round);
		fpu_hold(self->subject, round);
		for (run = 0; run <= round % 3; run++) {
			fpu_live(self->pair, self->subject, variant->subject);
			if (!vcpu_run(vcpu))
				break;
		}
		if (round & 1)
			fpu_live(self->pair, self->subject, variant->subject);
		fpu_read(self->subject);
		if (vcpu->stopped)
			break;
	}
	vcpu_get_xsave(vcpu);
	EXPECT_EQ(0, fpu_wrong("subject", self->subject));
	EXPECT_EQ(0, vcpu_wrong(vcpu));
	EXPECT_EQ(CHECKS_PER_EXIT * vcpu->exits, vcpu->guest->checks);
}

/* CR0.TS of the guest is set while the host switches tasks, by its own CR0.TS. */
TEST_F_TIMEOUT(history, lazy_guest, 60)
{
	struct vcpu *vcpu = fpu_share(sizeof(*vcpu));
	unsigned int rounds = 6 * fpu_rounds(), round;

	if (!have_kvm())
		SKIP(return, NO_KVM);

	ASSERT_TRUE(vcpu && vm_create() && vcpu_create(vcpu));
	vcpu->guest->lazy = 1;
	for (round = 0; round < rounds; round++) {
		if (!(round & 2))
			vcpu_load(vcpu, 100 + round);
		fpu_hold(self->subject, round);
		fpu_live(self->pair, self->subject, variant->subject);
		vcpu_run(vcpu);
		fpu_slice(self->pair);
		fpu_read(self->subject);
		if (vcpu->stopped)
			break;
	}
	vcpu_get_xsave(vcpu);
	EXPECT_EQ(0, fpu_wrong("subject", self->subject));
	EXPECT_EQ(0, vcpu_wrong(vcpu));
	EXPECT_EQ(CHECKS_PER_EXIT * vcpu->exits, vcpu->guest->ts_sets);
	/* One is pending. */
	EXPECT_EQ(vcpu->guest->ts_sets - 1, vcpu->guest->traps);
}

static const struct {
	const char *name;
	bool (*done)(struct vcpu *vcpu);
} steps[] = {
	{ "KVM_CREATE_VCPU", vcpu_create },
	{ "KVM_SET_XSAVE", vcpu_set_xsave },
	{ "KVM_RUN", vcpu_run },
	{ "KVM_GET_XSAVE", vcpu_get_xsave },
	{ "KVM_GET_FPU", vcpu_get_fpu },
	{ "KVM_SET_FPU", vcpu_set_fpu },
	{ "KVM_RUN after KVM_SET_FPU", vcpu_run },
	{ "KVM_GET_XSAVE after KVM_SET_FPU", vcpu_get_xsave },
};

/* Each ioctl is the first thing that the subject does after its history. */
TEST_F_TIMEOUT(history, first_run_after_sleep, 60)
{
	struct vcpu *vcpu = fpu_share(sizeof(*vcpu));
	unsigned int step;

	if (!have_kvm())
		SKIP(return, NO_KVM);

	ASSERT_TRUE(vcpu && vm_create());
	for (step = 0; step < ARRAY_SIZE(steps); step++) {
		fpu_hold(self->subject, step);
		fpu_live(self->pair, self->subject, variant->subject);
		ASSERT_TRUE(steps[step].done(vcpu)) {
			TH_LOG("%s", steps[step].name);
			vcpu_wrong(vcpu);
		}
		fpu_read(self->subject);
	}
	EXPECT_EQ(0, fpu_wrong("subject", self->subject));
	EXPECT_EQ(0, vcpu_wrong(vcpu));
}

static bool by_hash;

/* A file by which the kernel uses the FPU, or -1. */
static int open_kernel_fpu(void)
{
	struct sockaddr_alg address = {
		.salg_family = AF_ALG, .salg_type = "hash", .salg_name = "sha256",
	};
	int fd = open(TEST_FPU, O_RDONLY);

	if (fd >= 0)
		return fd;
	by_hash = true;
	fd = socket(AF_ALG, SOCK_SEQPACKET, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)))
		return -1;
	return accept(fd, NULL, NULL);
}

static void use_kernel_fpu(int fd)
{
	static char data[512];

	if (by_hash) {
		syscall(SYS_write, fd, data, sizeof(data));
		syscall(SYS_read, fd, data, 32);
	} else {
		syscall(SYS_pread64, fd, data, sizeof(data), 0);
	}
}

FIXTURE(guests)
{
	struct vcpu *vcpus;
	struct fpu_task *neighbours;	/* two for each vCPU */
	int *stop;
	long warned;
};

FIXTURE_SETUP(guests)
{
	self->warned = fpu_kernel_warned();
	self->vcpus = fpu_share(NR_VCPUS * sizeof(*self->vcpus));
	self->neighbours = fpu_share(2 * NR_VCPUS * sizeof(*self->neighbours));
	self->stop = fpu_share(sizeof(*self->stop));
	ASSERT_TRUE(self->vcpus && self->neighbours && self->stop);
	if (!have_kvm())
		FPU_SKIP_FIXTURE(NO_KVM);
	ASSERT_TRUE(vm_create());
}

FIXTURE_TEARDOWN(guests)
{
	EXPECT_EQ(self->warned, fpu_kernel_warned()) {
		TH_LOG("The kernel has warned, see its log");
	}
}

/* One lets the kernel use the FPU, and does not itself; the other one does. */
static void be_neighbour(struct fpu_task *task, int cpu, bool hot, int *stop)
{
	int fd = open_kernel_fpu();

	syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL);
	fpu_pin(cpu);
	fpu_hold(task, 200 + hot);
	while (!__atomic_load_n(stop, __ATOMIC_SEQ_CST)) {
		if (hot)
			fpu_read(task);
		else
			use_kernel_fpu(fd);
		syscall(SYS_sched_yield);
	}
	fpu_read(task);
	syscall(SYS_exit_group, 0);
}

static int be_vcpu(void *arg)
{
	struct vcpu *vcpu = arg;
	__u64 end = fpu_clock() + MILLISECONDS * fpu_rounds();
	int fd = open_kernel_fpu();

	syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL);
	fpu_pin(vcpu->cpu);
	fpu_hold(&vcpu->host, 10 + vcpu->nr);
	while (fpu_clock() < end) {
		if (vcpu->exits % 8 == 0)
			vcpu_load(vcpu, vcpu->exits / 8);
		if (!vcpu_run(vcpu))
			break;
		/* Now and then, it does not use the FPU for a while. */
		if (vcpu->exits & 16)
			fpu_read(&vcpu->host);
		if (vcpu->exits & 1)
			use_kernel_fpu(fd);
		/* Without this, its slices end in the guest mostly. */
		if (vcpu->exits % 4 == 0)
			syscall(SYS_sched_yield);
	}
	fpu_read(&vcpu->host);
	/* KVM may have given it a thread, so not SYS_exit. */
	syscall(SYS_exit_group, 0);
	return 0;
}

TEST_F_TIMEOUT(guests, guest_registers, 60)
{
	pid_t vcpus[NR_VCPUS], neighbours[2 * NR_VCPUS];
	int i, cpu, status;

	if (open_kernel_fpu() < 0)
		TH_LOG("No FPU use in the kernel: needs CONFIG_TEST_FPU or AF_ALG's sha256");

	for (i = 0; i < 2 * NR_VCPUS; i++) {
		cpu = fpu_nth_cpu(i / 2) < 0 ? fpu_nth_cpu(0) : fpu_nth_cpu(i / 2);
		self->vcpus[i / 2].cpu = cpu;
		neighbours[i] = fork();
		ASSERT_LE(0, neighbours[i]);
		if (!neighbours[i])
			be_neighbour(&self->neighbours[i], cpu, i & 1, self->stop);
	}
	for (i = 0; i < NR_VCPUS; i++) {
		struct vcpu *vcpu = &self->vcpus[i];

		vcpu->nr = i;
		ASSERT_TRUE(vcpu_create(vcpu));
		vcpus[i] = clone(be_vcpu, vcpu->stack + sizeof(vcpu->stack),
				 CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD, vcpu);
		ASSERT_LE(0, vcpus[i]);
	}
	for (i = 0; i < NR_VCPUS; i++) {
		ASSERT_EQ(vcpus[i], waitpid(vcpus[i], &status, 0));
		EXPECT_EQ(0, status);
		vcpu_get_xsave(&self->vcpus[i]);
		EXPECT_EQ(0, vcpu_wrong(&self->vcpus[i]));
		EXPECT_EQ(0, fpu_wrong("host", &self->vcpus[i].host));
		EXPECT_EQ(CHECKS_PER_EXIT * self->vcpus[i].exits, self->vcpus[i].guest->checks);
	}
	__atomic_store_n(self->stop, 1, __ATOMIC_SEQ_CST);
	for (i = 0; i < 2 * NR_VCPUS; i++) {
		ASSERT_EQ(neighbours[i], waitpid(neighbours[i], &status, 0));
		EXPECT_EQ(0, status);
		EXPECT_EQ(0, fpu_wrong("neighbour", &self->neighbours[i]));
	}
}

TEST_HARNESS_MAIN
