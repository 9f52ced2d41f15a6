//! What is read of what, and what is refused.

use std::io::Write;
use std::sync::Arc;

use nix::fcntl::open;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::Mode;

use super::*;
use crate::bus::bulk::{Budget, Work};

fn place() -> Place {
    Arc::<Budget>::default().place(0, Work::Stream).unwrap()
}

async fn all(source: &mut Source) -> Result<Vec<u8>, Error> {
    let mut all = Vec::new();
    while let Some(piece) = source.next().await? {
        all.extend(piece);
    }
    Ok(all)
}

async fn read_whole(fd: impl Into<OwnedFd>) -> Vec<u8> {
    all(&mut Source::open(fd.into(), place()).await.unwrap()).await.unwrap()
}

async fn refusal(fd: impl Into<OwnedFd>) -> (ErrorName, String) {
    let error = Source::open(fd.into(), place()).await.unwrap_err();
    (error.name(), error.message().to_owned())
}

fn memfd(seals: SealFlag) -> File {
    let mut file = File::from(memfd_create(c"test", MFdFlags::MFD_ALLOW_SEALING).unwrap());
    file.write_all(b"text\n").unwrap();
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    file
}

#[tokio::test]
async fn files_are_read_from_their_start_and_keep_their_position() {
    let mut named = tempfile::NamedTempFile::new().unwrap();
    let bytes: Vec<u8> = (0..200_000_u32).map(|n| n as u8).collect();
    named.write_all(&bytes).unwrap();
    assert_eq!(read_whole(named.as_file().try_clone().unwrap()).await, bytes);
    assert_eq!(io::Seek::stream_position(named.as_file_mut()).unwrap(), 200_000);
}

#[tokio::test]
async fn a_memfd_has_to_be_sealed() {
    let sealed = memfd(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_WRITE);
    assert_eq!(read_whole(sealed).await, b"text\n");
    for seals in [SealFlag::empty(), SealFlag::F_SEAL_SHRINK, SealFlag::F_SEAL_WRITE] {
        let (name, message) = refusal(memfd(seals)).await;
        assert_eq!(name, ErrorName::InvalidArgument);
        assert!(message.contains("F_SEAL_SHRINK"), "{message}");
    }
}

/// It has seals, but none that anybody can set.
#[tokio::test]
async fn a_file_of_a_tmpfs_needs_no_name() {
    let mut unlinked = tempfile::tempfile_in("/dev/shm").unwrap();
    unlinked.write_all(b"text\n").unwrap();
    assert_eq!(read_whole(unlinked).await, b"text\n");
}

/// They have no size, or that of a page.
#[tokio::test]
async fn files_of_the_kernel_are_read_to_their_end() {
    for path in ["/proc/version", "/proc/filesystems", "/sys/devices/system/cpu/online"] {
        let content = std::fs::read(path).unwrap();
        assert!(!content.is_empty(), "{path}");
        assert_eq!(read_whole(File::open(path).unwrap()).await, content, "{path}");
    }
    let empty = tempfile::tempfile().unwrap();
    assert_eq!(read_whole(empty).await, b"");
}

#[tokio::test]
async fn what_is_neither_file_nor_pipe_is_refused() {
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let (read_end, write_end) = io::pipe().unwrap();
    let path_only = open("/etc/passwd", OFlag::O_PATH, Mode::empty()).unwrap();
    let refused: [(OwnedFd, &str); 5] = [
        (socket.into(), "is a socket"),
        (File::open("/").unwrap().into(), "is a directory"),
        (File::open("/dev/zero").unwrap().into(), "is a character device"),
        (write_end.into(), "is not open for reading"),
        (path_only, "is not open for reading"),
    ];
    for (fd, expected) in refused {
        let (name, message) = refusal(fd).await;
        assert_eq!(name, ErrorName::InvalidArgument);
        assert!(message.contains(expected), "{message}");
    }
    drop(read_end);
}

#[tokio::test]
async fn a_file_that_gets_shorter_is_an_error_and_one_that_grows_is_not_followed() {
    let named = tempfile::NamedTempFile::new().unwrap();
    named.as_file().set_len(3 * PIECE_BYTES as u64).unwrap();
    let reader = |bytes| {
        let file = named.as_file().try_clone().unwrap();
        let (sender, pieces) = mpsc::channel(PIECES_AHEAD);
        std::thread::spawn(move || read(&file, Some(bytes), &sender));
        Source { kind: Kind::File(pieces), bytes, read: 0 }
    };
    let error = all(&mut reader(4 * PIECE_BYTES as u64)).await.unwrap_err();
    assert!(error.message().contains("ends at byte 196608"), "{error}");
    assert_eq!(all(&mut reader(10)).await.unwrap(), [0; 10]);
    named.as_file().set_len(1 << 40).unwrap();
    let sparse = named.as_file().try_clone().unwrap();
    assert_eq!(refusal(sparse).await.0, ErrorName::TooLarge);
}

#[tokio::test]
async fn a_pipe_is_read_to_its_end_and_keeps_its_flags() {
    let (read_end, mut write_end) = io::pipe().unwrap();
    let flags = || fcntl(&read_end, FcntlArg::F_GETFL).unwrap();
    let before = flags();
    let mut source = Source::open(read_end.try_clone().unwrap().into(), place()).await.unwrap();
    let writer = std::thread::spawn(move || write_end.write_all(&[7; 1 << 20]));
    assert_eq!(all(&mut source).await.unwrap(), vec![7; 1 << 20]);
    writer.join().unwrap().unwrap();
    assert_eq!(flags(), before);
}
