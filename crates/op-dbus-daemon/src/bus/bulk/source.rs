//! Bytes from a caller's file descriptor, in bounded pieces. Nothing is mapped, nothing that a caller
//! does to the file meanwhile does more than end the call, and the flags and the position that the
//! caller shares with us are left as they are.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use nix::fcntl::{FcntlArg, OFlag, SealFlag, SpliceFFlags, fcntl, splice};
use nix::sys::stat::{SFlag, fstat};
use nix::unistd::pipe2;
use op_dbus_api::{Error, ErrorName, INPUT_BYTES_MAX};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use super::budget::Place;

/// Bytes that are read at once; what a pipe holds.
const PIECE_BYTES: usize = 64 << 10;
/// Pieces of a file that are read ahead.
const PIECES_AHEAD: usize = 2;

/// Where texts come from.
#[derive(Debug)]
pub struct Source {
    kind: Kind,
    bytes: u64,
    read: u64,
}

#[derive(Debug)]
enum Kind {
    /// A file or a memfd, read by a thread of its own: a slow file system holds up nothing else. The
    /// thread has the stream's place: it may outlive the call, until the file system answers.
    File(mpsc::Receiver<io::Result<Vec<u8>>>),
    Pipe(Pipe),
}

/// A caller's pipe. Its flags are the caller's too, so it can't be made non-blocking: what it holds is
/// moved into a pipe of our own, without waiting.
#[derive(Debug)]
struct Pipe {
    theirs: AsyncFd<OwnedFd>,
    moved_in: OwnedFd,
    moved_out: File,
    _place: Place,
}

impl Source {
    /// Looks at `fd` and starts reading: files and memfds from their start, whatever their position.
    /// Has to be called within a Tokio runtime.
    ///
    /// # Errors
    /// `InvalidArgument` for what can't be read or is neither file, sealed memfd nor pipe;
    /// `TooLarge` for a file beyond [`INPUT_BYTES_MAX`].
    pub fn open(fd: OwnedFd, place: Place) -> Result<Self, Error> {
        let stat = fstat(&fd).map_err(|errno| unreadable(&errno.into()))?;
        let flags = fcntl(&fd, FcntlArg::F_GETFL).map_err(|errno| unreadable(&errno.into()))?;
        let flags = OFlag::from_bits_retain(flags);
        if flags.contains(OFlag::O_PATH) || flags & OFlag::O_ACCMODE == OFlag::O_WRONLY {
            return Err(invalid("is not open for reading; open it so"));
        }
        let mut bytes = 0;
        let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
        let kind = match kind {
            SFlag::S_IFREG => {
                check_seals(&fd, stat.st_nlink == 0)?;
                bytes = u64::try_from(stat.st_size).unwrap_or(0);
                check_size(bytes)?;
                Kind::File(read_on_a_thread(File::from(fd), bytes, place))
            }
            SFlag::S_IFIFO => Kind::Pipe(Pipe::new(fd, place).map_err(|error| unreadable(&error))?),
            other => return Err(invalid(&format!("is {}; {WANTED}", named(other)))),
        };
        Ok(Self { kind, bytes, read: 0 })
    }

    /// Bytes that it has; 0 for a pipe, which does not tell.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next bytes; `None` at the end. May be dropped while it waits: nothing is lost.
    ///
    /// # Errors
    /// `InvalidArgument` when it can't be read or got shorter; `TooLarge`.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let piece = match &mut self.kind {
            Kind::File(pieces) => pieces.recv().await.transpose(),
            Kind::Pipe(pipe) => pipe.next().await,
        };
        let piece = piece.map_err(|error| unreadable(&error))?;
        self.read += piece.as_ref().map_or(0, |piece| piece.len() as u64);
        check_size(self.read)?;
        Ok(piece)
    }
}

/// A memfd that others may still write to or cut is refused: its texts could be any.
fn check_seals(fd: &OwnedFd, unlinked: bool) -> Result<(), Error> {
    let wanted = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_WRITE;
    // Files of other file systems have no seals, and memfds no name.
    match fcntl(fd, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_retain) {
        Ok(seals) if unlinked && !seals.contains(wanted) => Err(invalid(
            "is a memfd that is not sealed; seal it with F_SEAL_SHRINK and F_SEAL_WRITE (it has to \
             be made with MFD_ALLOW_SEALING)",
        )),
        _ => Ok(()),
    }
}

fn check_size(bytes: u64) -> Result<(), Error> {
    if bytes <= INPUT_BYTES_MAX {
        return Ok(());
    }
    let message = format!(
        "the source has {bytes} bytes and more, the limit is {INPUT_BYTES_MAX}; split it over \
         several calls"
    );
    Err(Error::new(ErrorName::TooLarge, message))
}

/// Reads the `bytes` that the file has now. The thread ends with the receiver, at its next piece.
fn read_on_a_thread(file: File, bytes: u64, place: Place) -> mpsc::Receiver<io::Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel(PIECES_AHEAD);
    let failed = sender.clone();
    let work = move || {
        let _place = place;
        let mut at = 0;
        while at < bytes {
            let piece = read_at(&file, at, bytes);
            let length = piece.as_ref().map_or(0, Vec::len) as u64;
            // An error is the last piece; nobody listens when the call has ended.
            if sender.blocking_send(piece).is_err() || length == 0 {
                return;
            }
            at += length;
        }
    };
    if let Err(error) = std::thread::Builder::new().name("bulk-source".into()).spawn(work) {
        // The channel is empty, and its receiver is here.
        let _ = failed.try_send(Err(error));
    }
    receiver
}

fn read_at(file: &File, at: u64, end: u64) -> io::Result<Vec<u8>> {
    let mut piece = vec![0; PIECE_BYTES.min(usize::try_from(end - at).unwrap_or(PIECE_BYTES))];
    let length = loop {
        match file.read_at(&mut piece, at) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            length => break length?,
        }
    };
    if length == 0 {
        let what = format!("it ends at byte {at} and had {end} when the call began");
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
    }
    piece.truncate(length);
    Ok(piece)
}

impl Pipe {
    fn new(fd: OwnedFd, place: Place) -> io::Result<Self> {
        let (moved_out, moved_in) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        // SAFETY: an `OwnedFd` is the same open file until it is dropped, and the `AsyncFd`, which
        // owns it, is the only one that can drop it.
        let theirs = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE)? };
        Ok(Self { theirs, moved_in, moved_out: File::from(moved_out), _place: place })
    }

    async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Self { theirs, moved_in, moved_out, .. } = self;
        let moved = theirs.async_io(Interest::READABLE, |theirs| {
            let flags = SpliceFFlags::SPLICE_F_NONBLOCK | SpliceFFlags::SPLICE_F_MOVE;
            Ok(splice(theirs, None, &*moved_in, None, PIECE_BYTES, flags)?)
        });
        let moved = moved.await?;
        if moved == 0 {
            return Ok(None);
        }
        let mut piece = vec![0; moved];
        // It is all there, and nobody else reads.
        moved_out.read_exact(&mut piece)?;
        Ok(Some(piece))
    }
}

const WANTED: &str = "give a file, a sealed memfd or a pipe";

fn named(kind: SFlag) -> &'static str {
    match kind {
        SFlag::S_IFDIR => "a directory",
        SFlag::S_IFSOCK => "a socket",
        SFlag::S_IFCHR => "a character device",
        SFlag::S_IFBLK => "a block device",
        _ => "of a kind of its own",
    }
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorName::InvalidArgument, format!("the source {what}"))
}

fn unreadable(error: &io::Error) -> Error {
    invalid(&format!("can't be read ({error}); {WANTED} that stays as it is during the call"))
}

#[cfg(test)]
mod tests {
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

    fn refusal(fd: impl Into<OwnedFd>) -> (ErrorName, String) {
        let error = Source::open(fd.into(), place()).unwrap_err();
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
        let mut source =
            Source::open(named.as_file().try_clone().unwrap().into(), place()).unwrap();
        assert_eq!(all(&mut source).await.unwrap(), bytes);
        assert_eq!(io::Seek::stream_position(named.as_file_mut()).unwrap(), 200_000);
    }

    #[tokio::test]
    async fn a_memfd_has_to_be_sealed() {
        let sealed = memfd(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_WRITE);
        assert_eq!(
            all(&mut Source::open(sealed.into(), place()).unwrap()).await.unwrap(),
            b"text\n"
        );
        for seals in [SealFlag::empty(), SealFlag::F_SEAL_SHRINK, SealFlag::F_SEAL_WRITE] {
            let (name, message) = refusal(memfd(seals));
            assert_eq!(name, ErrorName::InvalidArgument);
            assert!(message.contains("F_SEAL_SHRINK"), "{message}");
        }
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
            let (name, message) = refusal(fd);
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
            Source { kind: Kind::File(read_on_a_thread(file, bytes, place())), bytes, read: 0 }
        };
        let error = all(&mut reader(4 * PIECE_BYTES as u64)).await.unwrap_err();
        assert!(error.message().contains("ends at byte 196608"), "{error}");
        assert_eq!(all(&mut reader(10)).await.unwrap(), [0; 10]);
        named.as_file().set_len(1 << 40).unwrap();
        let sparse = named.as_file().try_clone().unwrap();
        assert_eq!(refusal(sparse).0, ErrorName::TooLarge);
    }

    #[tokio::test]
    async fn a_pipe_is_read_to_its_end_and_keeps_its_flags() {
        let (read_end, mut write_end) = io::pipe().unwrap();
        let flags = || fcntl(&read_end, FcntlArg::F_GETFL).unwrap();
        let before = flags();
        let mut source = Source::open(read_end.try_clone().unwrap().into(), place()).unwrap();
        let writer = std::thread::spawn(move || write_end.write_all(&[7; 1 << 20]));
        assert_eq!(all(&mut source).await.unwrap(), vec![7; 1 << 20]);
        writer.join().unwrap().unwrap();
        assert_eq!(flags(), before);
    }
}
