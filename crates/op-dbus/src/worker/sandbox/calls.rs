//! System calls that a worker has no use for, refused by seccomp: whatever makes a socket, a process,
//! or a way into another process, into its terminal or into the kernel, or opens a file to others.
//!
//! The unit's filter lists what the service may call; this takes from that, and what is not here stays
//! as it is. A refused call fails with EPERM; where a library does not do without, it is answered otherwise, or in [`Needs`].

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp,
    SeccompCondition, SeccompFilter, SeccompRule, apply_filter,
};

/// New sockets that somebody may send to: the control socket is connected already, and the log goes to
/// standard error.
const SOCKETS: &[c_long] =
    &[libc::SYS_socketpair, libc::SYS_bind, libc::SYS_listen, libc::SYS_accept, libc::SYS_accept4];

/// Sockets that send to others.
const CONNECTIONS: &[c_long] = &[libc::SYS_socket, libc::SYS_connect];

/// Calls that connect as they send where a flag says so, and which argument has the flags. Landlock heeds
/// the ports of `connect` alone.
const SENDING: [(c_long, u8); 3] =
    [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)];

/// The bits of a socket's type that are its kind; the others are flags.
const SOCKET_KINDS: u64 = 0xf;

/// Whom a worker may connect to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// Nobody: no new socket of any kind.
    #[default]
    None,
    /// Nobody. But there may be a socket that listens, of the kind and for the sake of NVIDIA's driver: it
    /// makes one (`@cuda-uvmfd-…`) by which other processes could have its memory, and does not start
    /// (error 304) where it can't. Nobody who connects to it is accepted.
    NoneListening,
    /// Others by TCP, at the ports that Landlock leaves.
    Tcp,
    /// The same, whose names it looks up by UDP. Where that goes, Landlock does not heed.
    TcpByName,
}

/// Programs.
const PROGRAMS: &[c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
];

/// Other processes: their memory, their files, and signals by ways that can't be told apart. (`kill`
/// and the like are refused by their first argument.)
const PROCESSES: &[c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_kcmp,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_tkill,
];

/// What has a number or a name of its own in place of a file, so that Landlock does not see it, and is found by every
/// process of the user: System V's memory, semaphores and messages, and queues of messages.
const BY_NUMBER: &[c_long] = &[
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
];

/// Who may do what with a file, and with what is made from now on: answered as if it were done, and nothing is. Landlock
/// does not heed it, wherever the file lies, and the service's user has all of the service's. OpenVINO sets the mode of
/// what it has compiled, and gives up where that is refused; no program expects that `umask` may be.
const MODES: &[c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    // `fchmodat2`, whose number all architectures share.
    452,
    libc::SYS_umask,
];

/// Whose a file is, its times and attributes, and, by its path, its length: Landlock heeds none of these either (the
/// last from Linux 6.2 on). A descriptor that only reads is enough for some of them.
const OF_FILES: &[c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    // `setxattrat`, `removexattrat` and `file_setattr`, whose numbers all architectures share.
    463,
    466,
    469,
    libc::SYS_truncate,
];

/// Requests of `ioctl` that type, `TIOCSTI` and `TIOCLINUX`: standard error may be the terminal of the shell that a daemon
/// was started from, which would read what is typed there as a command. `FIOSETOWN` and `SIOCSPGRP`, as [`OWNING`]. And
/// `FS_IOC_SETFLAGS`, by the number of programs of 32 bits as well, `FS_IOC_FSSETXATTR` and `FS_IOC_ENABLE_VERITY`, as
/// [`OF_FILES`].
const REQUESTS: [u64; 8] =
    [0x5412, 0x541c, 0x8901, 0x8902, 0x4008_6602, 0x4004_6602, 0x401c_5820, 0x4080_6685];

/// Commands of `fcntl` that name whom a file sends a signal to when there is something to read, and which one: to the
/// daemon, say, which Landlock prevents from Linux 6.12 on. `F_SETOWN`, `F_SETSIG`, `F_SETOWN_EX`.
const OWNING: [u64; 3] = [8, 10, 15];

/// What the machine looks like: mounts, namespaces, its clock and names, its kernel.
const MACHINE: &[c_long] = &[
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_mount_setattr,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_acct,
    libc::SYS_reboot,
    libc::SYS_kexec_load,
    #[cfg(all(target_env = "gnu", not(target_arch = "riscv64")))]
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// Parts of the kernel that are large, seldom needed, and where its mistakes are found.
const KERNEL: &[c_long] = &[
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_syslog,
];

/// How the kernel schedules, which is set for any process of the same user: the daemon, and other workers. What
/// this worker gives way by was set before.
const SCHEDULING: &[c_long] = &[
    libc::SYS_setpriority,
    libc::SYS_ioprio_set,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setattr,
];

/// Calls whose first argument is a process: ours is meant, or the call is refused.
const OF_A_PROCESS: &[c_long] =
    &[libc::SYS_kill, libc::SYS_tgkill, libc::SYS_rt_sigqueueinfo, libc::SYS_rt_tgsigqueueinfo];

/// What a worker can't compute without.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needs {
    /// Programs to start, which are confined as it is.
    pub programs: bool,
    /// To choose the CPUs of a thread by its number, as others' libraries may. Whose thread that is, a filter can't
    /// tell.
    pub placing: bool,
    /// Sockets for it, and for nothing else.
    pub network: Network,
}

/// Refuses the calls to this thread and those that it will start, but for what it `needs`.
///
/// # Errors
/// The kernel or the architecture has no filters; then none is in force.
pub fn refuse(needs: Needs) -> Result<(), Error> {
    // The flags of `clone3` lie in memory, where a filter can't see them. Without it the C library
    // takes `clone`, whose flags it can.
    let unknown = filter(always(&[libc::SYS_clone3]), libc::ENOSYS)?;
    let modes = filter(always(MODES), 0)?;
    let refused = filter(rules(needs)?, libc::EPERM)?;
    if !needs.programs {
        // A compiler gives what it makes its modes, and others' files, too, if it likes.
        apply_filter(&modes)?;
        apply_filter(&unknown)?;
    }
    apply_filter(&refused)
}

/// No rule for a call is: always.
fn always(calls: &[c_long]) -> Rules {
    calls.iter().map(|&call| (call, Vec::new())).collect()
}

type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

fn rules(needs: Needs) -> Result<Rules, BackendError> {
    let Needs { programs, placing, network } = needs;
    let mut rules = Rules::new();
    for calls in [SOCKETS, PROCESSES, BY_NUMBER, MACHINE, KERNEL, SCHEDULING] {
        rules.extend(always(calls));
    }
    match network {
        Network::None => rules.extend(always(CONNECTIONS)),
        Network::NoneListening => {
            rules.extend(always(CONNECTIONS));
            rules.insert(
                libc::SYS_socket,
                sockets(&[libc::AF_UNIX], &[libc::SOCK_SEQPACKET], &[0])?,
            );
            rules.retain(|call, _| ![libc::SYS_bind, libc::SYS_listen].contains(call));
        }
        Network::Tcp => drop(rules.insert(libc::SYS_socket, of_ip(&[libc::SOCK_STREAM])?)),
        Network::TcpByName => {
            let kinds = [libc::SOCK_STREAM, libc::SOCK_DGRAM];
            rules.insert(libc::SYS_socket, of_ip(&kinds)?);
        }
    }
    if matches!(network, Network::Tcp | Network::TcpByName) {
        // What runs calls over gRPC wakes itself by one. A pair of streams reaches nobody else, as one of
        // datagrams would.
        let pairs = sockets(&[libc::AF_UNIX], &[libc::SOCK_STREAM], &[0])?;
        rules.insert(libc::SYS_socketpair, pairs);
        let flag = bits(libc::MSG_FASTOPEN);
        for (call, flags) in SENDING {
            let connects = condition(flags, SeccompCmpOp::MaskedEq(flag), flag)?;
            rules.insert(call, vec![SeccompRule::new(vec![connects])?]);
        }
    }
    let own = u64::from(std::process::id());
    let not = |process| condition(0, SeccompCmpOp::Ne, process);
    for &call in OF_A_PROCESS {
        rules.insert(call, vec![SeccompRule::new(vec![not(own)?])?]);
    }
    // Limits are asked for and set by this call; 0 is ourselves.
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(vec![not(own)?, not(0)?])?]);
    for (call, what) in [(libc::SYS_ioctl, &REQUESTS[..]), (libc::SYS_fcntl, &OWNING)] {
        let is = |&what| SeccompRule::new(vec![condition(1, SeccompCmpOp::Eq, what)?]);
        rules.insert(call, what.iter().map(is).collect::<Result<_, _>>()?);
    }
    if !placing {
        // 0 is the thread that calls.
        rules.insert(libc::SYS_sched_setaffinity, vec![SeccompRule::new(vec![not(0)?])?]);
    }
    if !programs {
        rules.extend(always(PROGRAMS));
        let thread = libc::CLONE_THREAD.unsigned_abs().into();
        let process = condition(0, SeccompCmpOp::MaskedEq(thread), 0)?;
        rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![process])?]);
        rules.extend(always(OF_FILES));
        // Without a path it is a file that is open: how the cache knows what is in use.
        let path = SeccompCondition::new(1, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, 0)?;
        rules.insert(libc::SYS_utimensat, vec![SeccompRule::new(vec![path])?]);
    }
    Ok(rules)
}

/// Sockets that are refused: all but those of IP of these `kinds`, TCP or UDP.
fn of_ip(kinds: &[i32]) -> Result<Vec<SeccompRule>, BackendError> {
    // 0 is what goes with the kind.
    let protocols = [0, libc::IPPROTO_TCP, libc::IPPROTO_UDP];
    sockets(&[libc::AF_INET, libc::AF_INET6], kinds, &protocols)
}

/// Sockets that are refused: all but those of one of the `families`, one of the `kinds` and one of the
/// `protocols`.
fn sockets(
    families: &[i32],
    kinds: &[i32],
    protocols: &[i32],
) -> Result<Vec<SeccompRule>, BackendError> {
    let none_of = |argument, values: &[i32]| {
        let not = |value: &i32| condition(argument, SeccompCmpOp::Ne, bits(*value));
        SeccompRule::new(values.iter().map(not).collect::<Result<_, _>>()?)
    };
    let mut refused = vec![none_of(0, families)?, none_of(2, protocols)?];
    let allowed = |kind: u64| kinds.iter().any(|one| bits(*one) == kind);
    for kind in (0..=SOCKET_KINDS).filter(|kind| !allowed(*kind)) {
        let is_it = condition(1, SeccompCmpOp::MaskedEq(SOCKET_KINDS), kind)?;
        refused.push(SeccompRule::new(vec![is_it])?);
    }
    Ok(refused)
}

fn bits(value: i32) -> u64 {
    value.unsigned_abs().into()
}

fn condition(argument: u8, is: SeccompCmpOp, value: u64) -> Result<SeccompCondition, BackendError> {
    // Processes are numbered in, and flags and requests fit, four bytes; the kernel ignores the rest.
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, is, value)
}

/// A filter that answers the calls of `rules` with `errno`.
fn filter(rules: Rules, errno: i32) -> Result<BpfProgram, BackendError> {
    let errno = SeccompAction::Errno(errno.unsigned_abs());
    let architecture = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(with_x32(rules), SeccompAction::Allow, errno, architecture)?.try_into()
}

/// The same calls as programs of the x32 kind number them, of which a filter would know nothing: on
/// x86-64 any program may call by these numbers, where the kernel was built with them.
fn with_x32(mut rules: Rules) -> Rules {
    const X32: c_long = 0x4000_0000;
    /// Calls that have a number of their own there, and what they are else.
    const RENUMBERED: [(c_long, c_long); 11] = [
        (514, libc::SYS_ioctl),
        (518, libc::SYS_sendmsg),
        (520, libc::SYS_execve),
        (521, libc::SYS_ptrace),
        (524, libc::SYS_rt_sigqueueinfo),
        (528, libc::SYS_kexec_load),
        (536, libc::SYS_rt_tgsigqueueinfo),
        (538, libc::SYS_sendmmsg),
        (539, libc::SYS_process_vm_readv),
        (540, libc::SYS_process_vm_writev),
        (545, libc::SYS_execveat),
    ];
    if cfg!(target_arch = "x86_64") {
        let number = |call: c_long| RENUMBERED.iter().find(|(_, as_else)| *as_else == call);
        let numbered = |call| number(call).map_or(call, |(own, _)| *own) | X32;
        let twins: Rules =
            rules.iter().map(|(&call, rule)| (numbered(call), rule.clone())).collect();
        rules.extend(twins);
    }
    rules
}

#[cfg(test)]
mod tests;
