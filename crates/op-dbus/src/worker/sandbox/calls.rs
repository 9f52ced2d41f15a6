//! System calls that a worker has no use for, refused by seccomp: whatever makes a socket, a process,
//! or a way into another process or into the kernel.
//!
//! The unit's filter lists what the service may call; this takes from that, and what is not here stays
//! as it is. A refused call fails with EPERM, and a library that tries it in vain does without.

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
    /// Others by TCP.
    Tcp,
    /// Others by TCP, whose names it looks up by UDP.
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

/// Calls whose first argument is a process: ours is meant, or the call is refused.
const OF_A_PROCESS: &[c_long] =
    &[libc::SYS_kill, libc::SYS_tgkill, libc::SYS_rt_sigqueueinfo, libc::SYS_rt_tgsigqueueinfo];

/// Refuses the calls to this thread and those that it will start. With `programs` processes may be
/// started, which are confined as we are. With a network sockets can be made for it, and for nothing else.
///
/// # Errors
/// The kernel or the architecture has no filters; then none is in force.
pub fn refuse(programs: bool, network: Network) -> Result<(), Error> {
    // The flags of `clone3` lie in memory, where a filter can't see them. Without it the C library
    // takes `clone`, whose flags it can.
    let unknown = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let refused = filter(rules(programs, network)?, libc::EPERM)?;
    if !programs {
        apply_filter(&filter(unknown, libc::ENOSYS)?)?;
    }
    apply_filter(&refused)
}

type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

fn rules(programs: bool, network: Network) -> Result<Rules, BackendError> {
    // No rule for a call is: always.
    let always = |calls: &[c_long]| calls.iter().map(|&call| (call, Vec::new())).collect::<Rules>();
    let mut rules = Rules::new();
    for calls in [SOCKETS, PROCESSES, MACHINE, KERNEL] {
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
    }
    let own = u64::from(std::process::id());
    let not = |process| condition(0, SeccompCmpOp::Ne, process);
    for &call in OF_A_PROCESS {
        rules.insert(call, vec![SeccompRule::new(vec![not(own)?])?]);
    }
    // Limits are asked for and set by this call; 0 is ourselves.
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(vec![not(own)?, not(0)?])?]);
    if !programs {
        rules.extend(always(PROGRAMS));
        let thread = libc::CLONE_THREAD.unsigned_abs().into();
        let process = condition(0, SeccompCmpOp::MaskedEq(thread), 0)?;
        rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![process])?]);
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
    // Processes are numbered in, and flags of `clone` fit, four bytes; the kernel ignores the rest.
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
    const RENUMBERED: [(c_long, c_long); 8] = [
        (520, libc::SYS_execve),
        (521, libc::SYS_ptrace),
        (524, libc::SYS_rt_sigqueueinfo),
        (528, libc::SYS_kexec_load),
        (536, libc::SYS_rt_tgsigqueueinfo),
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
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use nix::errno::Errno;

    use super::*;

    #[test]
    fn no_call_is_listed_twice_and_programs_are_refused_unless_needed() {
        let lists = [SOCKETS, CONNECTIONS, PROGRAMS, PROCESSES, MACHINE, KERNEL, OF_A_PROCESS];
        let listed: usize = lists.iter().map(|calls| calls.len()).sum();
        // And `prlimit64` and `clone`.
        assert_eq!(rules(false, Network::None).unwrap().len(), listed + 2);
        let with_programs = rules(true, Network::None).unwrap();
        for call in [libc::SYS_execve, libc::SYS_clone] {
            assert!(!with_programs.contains_key(&call), "{call}");
        }
        assert!(with_programs.contains_key(&libc::SYS_socket));
    }

    #[test]
    fn the_filters_can_be_made_on_this_architecture() {
        for network in [Network::None, Network::NoneListening, Network::Tcp, Network::TcpByName] {
            assert!(filter(rules(false, network).unwrap(), libc::EPERM).is_ok());
        }
    }

    /// How making sockets of these families, kinds and protocols ends on a thread with this network, and
    /// how it ends to connect and to listen.
    fn attempts(network: Network) -> Vec<(&'static str, bool)> {
        let attempts = move || {
            refuse(false, network).unwrap();
            let made = |family, kind, protocol| {
                // SAFETY: the call reads no memory; what it makes is closed at once.
                let socket = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) };
                if socket >= 0 {
                    // SAFETY: the kernel has just made it for us.
                    unsafe { libc::close(socket) };
                }
                socket >= 0
            };
            vec![
                ("tcp", made(libc::AF_INET, libc::SOCK_STREAM, 0)),
                ("udp", made(libc::AF_INET, libc::SOCK_DGRAM, 0)),
                ("multipath tcp", made(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP)),
                ("raw", made(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_TCP)),
                ("unix", made(libc::AF_UNIX, libc::SOCK_STREAM, 0)),
                ("unix packets", made(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0)),
                ("netlink", made(libc::AF_NETLINK, libc::SOCK_RAW, 0)),
                ("listening", std::net::TcpListener::bind("127.0.0.1:0").is_ok()),
                ("a pair of streams", UnixStream::pair().is_ok()),
                ("a pair of datagrams", UnixDatagram::pair().is_ok()),
            ]
        };
        // The filter is for the thread that asks for it.
        std::thread::spawn(attempts).join().unwrap()
    }

    #[test]
    fn sockets_are_those_of_the_network_alone() {
        let done = |network| -> Vec<&str> {
            attempts(network).into_iter().filter(|(_, done)| *done).map(|(name, _)| name).collect()
        };
        assert_eq!(done(Network::None), [""; 0]);
        assert_eq!(done(Network::NoneListening), ["unix packets"]);
        assert_eq!(done(Network::Tcp), ["tcp", "a pair of streams"]);
        assert_eq!(done(Network::TcpByName), ["tcp", "udp", "a pair of streams"]);
    }

    /// As libcuda does it.
    #[test]
    fn nobody_is_accepted_by_what_listens() {
        use nix::sys::socket::{
            AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept, bind, connect, listen,
            socket,
        };

        let attempt = |network| {
            let attempt = move || {
                refuse(false, network).unwrap();
                let kind = (AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC);
                let made = || socket(kind.0, kind.1, kind.2, None);
                let address = format!("op-dbus-test-{}", std::process::id());
                let address = UnixAddr::new_abstract(address.as_bytes()).unwrap();
                let listening = made()?;
                bind(listening.as_raw_fd(), &address)?;
                listen(&listening, Backlog::new(1).unwrap())?;
                let refused = [
                    connect(made()?.as_raw_fd(), &address).unwrap_err(),
                    accept(listening.as_raw_fd()).unwrap_err(),
                ];
                nix::Result::Ok(refused)
            };
            std::thread::spawn(attempt).join().unwrap()
        };
        assert_eq!(attempt(Network::NoneListening), Ok([Errno::EPERM; 2]));
        assert_eq!(attempt(Network::None), Err(Errno::EPERM));
    }

    #[test]
    fn tcp_reaches_who_listens() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connected = |network| {
            let connect = move || {
                refuse(false, network).unwrap();
                std::net::TcpStream::connect(address).is_ok()
            };
            std::thread::spawn(connect).join().unwrap()
        };
        assert!(connected(Network::Tcp) && !connected(Network::None));
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_numbers_of_x32_are_refused_as_well() {
        let rules = with_x32(rules(false, Network::None).unwrap());
        for call in [libc::SYS_socket | 0x4000_0000, 0x4000_0000 + 520, 0x4000_0000 + 545] {
            assert!(rules.contains_key(&call), "{call:x}");
        }
    }
}
