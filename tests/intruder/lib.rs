//! A library that a worker loads as its ONNX Runtime, and that is up to no good: it tries what whoever
//! took a worker over would try, and tells on standard error how each attempt ended.
//!
//! `intruder: NAME: done`, or the name of the error. No attempt does harm where it succeeds. Before them it
//! tells the names of the variables that it finds in its environment.

use std::ffi::{CStr, c_char, c_long, c_void};
use std::fs::{self, File};
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::sys::time::TimeVal;
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid};

/// Bytes; more than the test lets a worker have, and nothing of it is used.
const TOO_MUCH: usize = 2 << 30;

/// What ONNX Runtime hands out: two functions.
#[repr(C)]
struct ApiBase {
    get_api: extern "C" fn(u32) -> *const c_void,
    get_version: extern "C" fn() -> *const c_char,
}

static API_BASE: ApiBase = ApiBase { get_api: no_api, get_version: version };

extern "C" fn no_api(_: u32) -> *const c_void {
    std::ptr::null()
}

extern "C" fn version() -> *const c_char {
    const VERSION: &CStr = c"0.0.0";
    VERSION.as_ptr()
}

/// The first function that is called of the library; then its version is found to be too old.
///
/// # Safety
/// It takes nothing and returns a static. The name is that of ONNX Runtime, of which a process that
/// loads this library has no other.
#[unsafe(no_mangle)]
extern "C" fn OrtGetApiBase() -> *const c_void {
    let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
    environment();
    files(&home);
    sockets(&home);
    processes();
    shared();
    kernel();
    tell("the end", Ok::<_, io::Error>(()));
    (&raw const API_BASE).cast()
}

fn tell<T>(name: &str, outcome: Result<T, impl Into<io::Error>>) {
    let outcome = match outcome {
        Ok(_) => "done".to_owned(),
        Err(error) => {
            let error: io::Error = error.into();
            let number = error.raw_os_error();
            number.map_or_else(|| error.to_string(), |n| format!("{:?}", Errno::from_raw(n)))
        }
    };
    let line = format!("intruder: {name}: {outcome}\n");
    // In one piece: the daemon's log is the same file.
    eprint!("{line}");
}

fn environment() {
    let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    let line = format!("intruder's environment: {}\n", names.collect::<Vec<_>>().join(" "));
    eprint!("{line}");
}

fn files(home: &Path) {
    tell("read /etc/passwd", fs::read("/etc/passwd"));
    tell("read a secret", fs::read(home.join("secret")));
    tell("list a folder", fs::read_dir(home));
    tell("read another process", fs::read(format!("/proc/{}/environ", getppid())));
    tell("read another model", fs::read(home.join("models/other/weights")));
    tell("write beside the cache", File::create(home.join("beside")));
    tell("write to the store", File::create(home.join("models/own/more")));
    let cached = std::env::temp_dir().join("intruder");
    tell("write to the cache", fs::write(&cached, "x"));
    tell("move out of the cache", fs::rename(&cached, home.join("moved")));
    let other = std::env::temp_dir().with_file_name("other");
    let packed = other.join("packed");
    tell("read another model's cache", fs::read(&packed));
    tell("write to another model's cache", fs::write(&packed, "x"));
    tell("add to another model's cache", File::create(other.join("more")));
    tell("remove from another model's cache", fs::remove_file(&packed));
    tell("replace in another model's cache", fs::rename(&cached, &packed));
    tell("write beside the models' caches", File::create(other.with_extension("more")));
    tell(
        "touch what is in the cache",
        File::open(&cached).and_then(|file| file.set_modified(SystemTime::now())),
    );
    tell("open a secret to all", open_to_all(&home.join("secret")));
    tell("open the store to all", open_to_all(&home.join("models")));
    tell("open the own cache to all", open_to_all(&cached));
    tell("cut a secret", nix::unistd::truncate(&home.join("secret"), 1 << 10));
    tell(
        "touch another model's cache",
        nix::sys::stat::utimes(&packed, &TimeVal::new(1, 0), &TimeVal::new(1, 0)),
    );
    call("the owner of a file", libc::SYS_fchownat, [-1, 0, 0]);
    call("an attribute of a file", libc::SYS_setxattr, [0, 0, 0]);
    tell("link in the cache", std::os::unix::fs::symlink("/etc", cached.with_extension("link")));
    tell("open /dev/null", File::create("/dev/null"));
    tell("read the own process", fs::read("/proc/self/status"));
}

fn open_to_all(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o777))
}

fn sockets(home: &Path) {
    use nix::sys::socket::{
        AddressFamily, SockFlag, SockType, UnixAddr, connect, socket, socketpair,
    };
    let bus = home.join("bus");
    let of = |family, kind| socket(family, kind, SockFlag::empty(), None);
    tell("a TCP socket", TcpListener::bind("127.0.0.1:0"));
    tell("a UDP socket", UdpSocket::bind("127.0.0.1:0"));
    tell("a netlink socket", of(AddressFamily::Netlink, SockType::Raw));
    tell("a socket of the kernel's", of(AddressFamily::Alg, SockType::SeqPacket));
    tell("a unix socket", UnixDatagram::unbound());
    tell("two unix sockets", {
        let (unix, stream) = (AddressFamily::Unix, SockType::Stream);
        socketpair(unix, stream, None, SockFlag::empty())
    });
    tell("the bus", UnixStream::connect(&bus));
    tell("the bus by the control socket", UnixAddr::new(&bus).and_then(|bus| connect(0, &bus)));
}

fn processes() {
    // SAFETY: the child does nothing but end, by a call that is allowed in one of many threads.
    tell(
        "a process",
        unsafe { fork() }.inspect(|forked| {
            if let ForkResult::Child = forked {
                // SAFETY: it takes a number and returns to nobody.
                unsafe { libc::_exit(0) };
            }
        }),
    );
    tell("a program", Command::new("/bin/true").status());
    tell("another program in our place", nix::unistd::execv(c"/nowhere/at/all", &[c"program"]));
    tell("a signal to the daemon", kill(getppid(), None));
    tell("a signal to all", kill(Pid::from_raw(-1), None));
    tell("a signal to itself", kill(getpid(), None));
    tell("a thread", std::thread::spawn(|| ()).join().map_err(|_| Errno::EAGAIN));
    let unlimited = c_long::from(i32::MAX);
    let daemon = c_long::from(getppid().as_raw());
    tell("more memory than it may have", {
        // SAFETY: a new mapping of nobody else's memory, which nothing refers to and nothing touches.
        let address = unsafe {
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(
                std::ptr::null_mut(),
                TOO_MUCH,
                protection,
                flags | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED { Err(Errno::last()) } else { Ok(()) }
    });
    call("the limits of the daemon", libc::SYS_prlimit64, [daemon, unlimited, 0]);
    call(
        "a signal to the daemon by a file",
        libc::SYS_fcntl,
        [0, libc::F_SETOWN.into(), i32::MIN.into()],
    );
    call("a signal to the daemon by a socket", libc::SYS_ioctl, [0, 0x8901, 0]);
    call("a handle of the daemon", libc::SYS_pidfd_open, [daemon, 0, 0]);
    call("the memory of the daemon", libc::SYS_process_vm_readv, [daemon, 0, 0]);
    call("to trace the daemon", libc::SYS_ptrace, [-1, daemon, 0]);
    call("the priority of the daemon", libc::SYS_setpriority, [-1, daemon, 0]);
    call("the daemon's share of the disk", libc::SYS_ioprio_set, [-1, daemon, 0]);
    call("how the daemon is scheduled", libc::SYS_sched_setscheduler, [daemon, -1, 0]);
    call("the daemon's real-time priority", libc::SYS_sched_setparam, [daemon, 0, 0]);
    call("the daemon's deadlines", libc::SYS_sched_setattr, [daemon, 0, 0]);
    call("a process by the newer call", libc::SYS_clone3, [0, 0, 0]);
}

/// What every process of the user finds by a number or a name, and the terminal of whoever started the daemon.
fn shared() {
    call("memory by a number", libc::SYS_shmget, [0, -1, 0]);
    call("another's memory by its number", libc::SYS_shmat, [-1, 0, 0]);
    call("the end of another's memory", libc::SYS_shmctl, [-1, 0, 0]);
    call("semaphores by a number", libc::SYS_semget, [0, -1, 0]);
    call("another's messages by their number", libc::SYS_msgrcv, [-1, 0, 0]);
    call("messages by a name", libc::SYS_mq_open, [0, 0, 0]);
    let standard_error = c_long::from(libc::STDERR_FILENO);
    let types = libc::TIOCSTI.cast_signed();
    call("a letter in the terminal", libc::SYS_ioctl, [standard_error, types, 0]);
    // The kernel reads the lower half alone.
    let longer = types | (1 << 32);
    call("a letter by a longer number", libc::SYS_ioctl, [standard_error, longer, 0]);
    let pastes = libc::TIOCLINUX.cast_signed();
    call("what is marked in the terminal", libc::SYS_ioctl, [standard_error, pastes, 0]);
}

fn kernel() {
    call("a namespace", libc::SYS_unshare, [0, 0, 0]);
    call("another namespace", libc::SYS_setns, [-1, 0, 0]);
    call("a mount", libc::SYS_mount, [0, 0, 0]);
    call("a key", libc::SYS_keyctl, [-1, 0, 0]);
    call("a program in the kernel", libc::SYS_bpf, [-1, 0, 0]);
    call("performance counters", libc::SYS_perf_event_open, [0, 0, -1]);
    call("page faults", libc::SYS_userfaultfd, [-1, 0, 0]);
    call("a ring", libc::SYS_io_uring_setup, [0, 0, 0]);
    call("a file by its handle", libc::SYS_open_by_handle_at, [-1, 0, 0]);
}

/// Calls the kernel with numbers that it refuses anyway, but with another error where it looks at them.
fn call(name: &str, number: c_long, [first, second, third]: [c_long; 3]) {
    // SAFETY: no argument points to memory: those that the kernel would take for a pointer are 0, and
    // it answers with an error instead of following them.
    let answer = unsafe { libc::syscall(number, first, second, third, 0, 0, 0) };
    tell(name, Errno::result(answer));
}
