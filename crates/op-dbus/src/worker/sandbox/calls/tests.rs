//! What the filters refuse of what is tried.

use std::io::{IoSlice, Write};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};

use nix::errno::Errno;
use nix::sched::{sched_getaffinity, sched_setaffinity};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, MultiHeaders, SockFlag, SockType, SockaddrStorage, UnixAddr,
    accept, bind, connect, getsockname, listen, sendmmsg, sendmsg, sendto, socket,
};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Pid, getppid};

use super::*;

/// Nothing but this network.
fn on(network: Network) -> Needs {
    Needs { network, ..Needs::default() }
}

#[test]
fn no_call_is_listed_twice_and_programs_are_refused_unless_needed() {
    let lists = [
        SOCKETS,
        CONNECTIONS,
        PROGRAMS,
        PROCESSES,
        BY_NUMBER,
        MACHINE,
        KERNEL,
        SCHEDULING,
        OF_A_PROCESS,
        OF_FILES,
    ];
    let listed: usize = lists.iter().map(|calls| calls.len()).sum();
    // And `prlimit64`, `ioctl`, `fcntl`, `clone`, `utimensat` and `sched_setaffinity`.
    assert_eq!(rules(Needs::default()).unwrap().len(), listed + 6);
    let with_programs = rules(Needs { programs: true, ..Needs::default() }).unwrap();
    for call in [libc::SYS_execve, libc::SYS_clone, libc::SYS_fchown, libc::SYS_utimensat] {
        assert!(!with_programs.contains_key(&call), "{call}");
    }
    assert!(with_programs.contains_key(&libc::SYS_socket));
}

#[test]
fn the_filters_can_be_made_on_this_architecture() {
    for network in [Network::None, Network::NoneListening, Network::Tcp, Network::TcpByName] {
        assert!(filter(rules(on(network)).unwrap(), libc::EPERM).is_ok());
    }
}

/// How it ends to connect by each call that sends.
fn fast_opened(to: SockaddrStorage) -> [(&'static str, nix::Result<usize>); 3] {
    let open = MsgFlags::from_bits_retain(libc::MSG_FASTOPEN);
    let (text, slices) = (b"x", [IoSlice::new(b"x")]);
    let made = || socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
    let many = |by: OwnedFd| {
        let mut headers = MultiHeaders::preallocate(1, None);
        let (slices, to) = ([slices], [Some(to)]);
        let sent = sendmmsg(by.as_raw_fd(), &mut headers, &slices, to, [], open);
        sent.map(|sent| sent.count())
    };
    [
        ("sendto", made().and_then(|by| sendto(by.as_raw_fd(), text, &to, open))),
        ("sendmsg", made().and_then(|by| sendmsg(by.as_raw_fd(), &slices, &[], open, Some(&to)))),
        ("sendmmsg", made().and_then(many)),
    ]
}

/// How making sockets of these families, kinds and protocols ends on a thread with this network, and
/// how it ends to connect and to listen.
fn attempts(network: Network) -> Vec<(&'static str, bool)> {
    let attempts = move || {
        refuse(on(network)).unwrap();
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
            ("listening", TcpListener::bind("127.0.0.1:0").is_ok()),
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
    let attempt = |network| {
        let attempt = move || {
            refuse(on(network)).unwrap();
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
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let connected = |network| {
        let connect = move || {
            refuse(on(network)).unwrap();
            let connected = std::net::TcpStream::connect(address);
            connected.and_then(|mut stream| stream.write_all(b"x")).is_ok()
        };
        std::thread::spawn(connect).join().unwrap()
    };
    assert!(connected(Network::Tcp) && !connected(Network::None));
}

/// Landlock, which knows the ports, does not see it.
#[test]
fn no_call_connects_as_it_sends() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: SockaddrStorage = getsockname(listener.as_raw_fd()).unwrap();
    let attempt = |network: Option<Network>| {
        let attempt = move || {
            network.into_iter().for_each(|network| refuse(on(network)).unwrap());
            fast_opened(address)
        };
        std::thread::spawn(attempt).join().unwrap()
    };
    for network in [Network::None, Network::NoneListening, Network::Tcp, Network::TcpByName] {
        for (call, outcome) in attempt(Some(network)) {
            assert_eq!(outcome, Err(Errno::EPERM), "{network:?}: {call}");
        }
    }
    // A machine may have it switched off.
    for (call, outcome) in attempt(None) {
        assert_ne!(outcome, Err(Errno::EPERM), "{call}");
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn the_numbers_of_x32_are_refused_as_well() {
    let rules = with_x32(rules(on(Network::Tcp)).unwrap());
    for call in [libc::SYS_socket, libc::SYS_sendto, libc::SYS_shmat, 514, 518, 520, 538, 545] {
        assert!(rules.contains_key(&(call | 0x4000_0000)), "{call}");
    }
}

/// The daemon and the other workers are of the same user.
#[test]
fn no_other_process_is_scheduled() {
    let attempts = |needs| {
        let attempts = move || {
            refuse(needs).unwrap();
            let other = getppid();
            let cpus = sched_getaffinity(Pid::from_raw(0)).unwrap();
            // SAFETY: the call takes numbers alone.
            let prioritised =
                Errno::result(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) });
            let placed = [other, Pid::from_raw(0)].map(|whom| sched_setaffinity(whom, &cpus));
            (prioritised.map(drop), placed)
        };
        std::thread::spawn(attempts).join().unwrap()
    };
    assert_eq!(attempts(Needs::default()), (Err(Errno::EPERM), [Err(Errno::EPERM), Ok(())]));
    let (prioritised, [_, own]) = attempts(Needs { placing: true, ..Needs::default() });
    assert_eq!((prioritised, own), (Err(Errno::EPERM), Ok(())));
    let rules = rules(Needs { placing: true, ..Needs::default() }).unwrap();
    assert!(!rules.contains_key(&libc::SYS_sched_setaffinity));
}

/// Calls that type for whoever has the terminal `of`, have it signal to others, or find what has a number. Each has one
/// that the kernel refuses for another reason, if it looks at it.
fn typed_and_found(of: i32) -> Vec<(c_long, [c_long; 3])> {
    let of = c_long::from(of);
    let typed = REQUESTS.map(|request| (libc::SYS_ioctl, [of, request.cast_signed(), 0]));
    // The kernel reads the lower half alone.
    let longer = typed.map(|(call, [of, request, _])| (call, [of, request | (1 << 32), 0]));
    let signalled = [(8, i32::MIN), (10, 1000), (15, 0)]
        .map(|(command, whom)| (libc::SYS_fcntl, [of, command, c_long::from(whom)]));
    let found = [
        (libc::SYS_shmget, [0, -1, 0]),
        (libc::SYS_shmat, [-1, 0, 0]),
        (libc::SYS_semget, [0, -1, 0]),
        (libc::SYS_msgrcv, [-1, 0, 0]),
        (libc::SYS_mq_open, [0, 0, 0]),
    ];
    [&typed[..], &longer, &signalled, &found].concat()
}

/// Whatever else a worker needs.
#[test]
fn nothing_is_found_by_a_number_and_nobody_typed_for_or_signalled() {
    let outcomes = |needs: Option<Needs>| {
        let attempts = move || {
            let no_terminal = std::fs::File::open("/dev/null").unwrap();
            needs.into_iter().for_each(|needs| refuse(needs).unwrap());
            let mut errors = Vec::new();
            for (call, [first, second, third]) in typed_and_found(no_terminal.as_raw_fd()) {
                // SAFETY: no argument points to memory, and nothing is done with numbers that are wrong.
                let answer = unsafe { libc::syscall(call, first, second, third, 0, 0) };
                errors.push(Errno::result(answer).unwrap_err());
            }
            errors
        };
        std::thread::spawn(attempts).join().unwrap()
    };
    let all = Needs { programs: true, placing: true, network: Network::TcpByName };
    for needs in [Needs::default(), all] {
        assert_eq!(outcomes(Some(needs)), [Errno::EPERM; 24], "{needs:?}");
    }
    assert!(!outcomes(None).contains(&Errno::EPERM));
}

/// What it says is not so: the mode is as it was, and the mask.
#[test]
fn a_mode_is_not_set_and_nobody_is_told() {
    let attempt = |needs: Option<Needs>| {
        let attempt = move || {
            let file = tempfile::NamedTempFile::new().unwrap();
            let mode = |wanted| std::fs::Permissions::from_mode(wanted);
            needs.into_iter().for_each(|needs| refuse(needs).unwrap());
            let by_path = std::fs::set_permissions(file.path(), mode(0o644));
            by_path.and_then(|()| file.as_file().set_permissions(mode(0o644))).unwrap();
            file.as_file().metadata().unwrap().permissions().mode() & 0o777
        };
        std::thread::spawn(attempt).join().unwrap()
    };
    let unmasked = move || {
        refuse(Needs::default()).unwrap();
        umask(Mode::empty());
        let folder = tempfile::tempdir().unwrap();
        let made = std::fs::File::create(folder.path().join("made")).unwrap();
        made.metadata().unwrap().permissions().mode() & 0o777
    };
    assert_eq!(std::thread::spawn(unmasked).join().unwrap() & 0o022, 0);
    assert_eq!(attempt(Some(Needs::default())), 0o600);
    assert_eq!(attempt(Some(Needs { programs: true, ..Needs::default() })), 0o644);
    assert_eq!(attempt(None), 0o644);
}
