//! Bytes from a caller's file descriptor, in bounded pieces. Nothing is mapped, nothing that a caller
//! does to the file meanwhile does more than end the call, and the flags and the position that the
//! caller shares with us are left as they are.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Weak};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, SpliceFFlags, fcntl, splice};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::{FileStat, SFlag, fstat};
use nix::sys::statfs::{FsType, fstatfs};
use nix::unistd::pipe2;
use op_dbus_api::{Error, ErrorName, INPUT_BYTES_MAX};
use tokio::sync::{mpsc, oneshot};

use super::super::descriptors::{self, Descriptors};
use super::budget::Place;

/// Bytes that are read at once; what a pipe holds.
const PIECE_BYTES: usize = 64 << 10;
/// Pieces of a file that are read ahead.
const PIECES_AHEAD: usize = 2;
/// What `sysfs` calls itself. Most of its files have the size of a page, whatever they hold.
const SYSFS: FsType = FsType(0x6265_6572);

/// Where texts come from.
#[derive(Debug)]
pub struct Source {
    /// What its thread has read.
    pieces: Pieces,
    bytes: u64,
    read: u64,
    /// Tells the thread by its end that nobody wants more.
    _wanted: OwnedFd,
    place: Arc<Place>,
}

type Pieces = mpsc::Receiver<io::Result<Vec<u8>>>;

/// What a look at a descriptor found.
enum Found {
    /// A file with the end that it has now; none where only reading finds it.
    File(Option<u64>),
    Pipe,
}

impl Source {
    /// Looks at `fd` and starts reading: files and memfds from their start, whatever their position.
    /// Has to be called within a Tokio runtime. May take as long as the file system does.
    ///
    /// Whatever a file system, or who writes into a pipe, may leave unanswered is asked by a thread of the
    /// source's own, so that it holds up nothing else: looking, reading and closing. The thread has the
    /// stream's place as well: it may outlive the call, until there is an answer. Nor is the call over when
    /// all is read. What is left where there is no such thread, or no such place, `closing` closes.
    ///
    /// # Errors
    /// `InvalidArgument` for what can't be read or is neither file, sealed memfd nor pipe;
    /// `TooLarge` for a file beyond [`INPUT_BYTES_MAX`].
    pub async fn open(
        fd: OwnedFd,
        place: Place,
        closing: &Arc<Descriptors>,
    ) -> Result<Self, Error> {
        let place = Arc::new(place);
        let (place_of_thread, elsewhere) = (place.clone(), closing.clone());
        let (give, given) = oneshot::channel();
        let (tell, told) = oneshot::channel();
        let (sender, pieces) = mpsc::channel(PIECES_AHEAD);
        let work = move || {
            // Given once it runs: a thread that can't be had would have it closed here.
            let Ok(fd) = given.blocking_recv() else { return };
            // Not before, where a failure would have the descriptor closed.
            let ends = || pipe2(OFlag::O_CLOEXEC).map_err(|errno| unreadable(&errno.into()));
            match look(&fd).and_then(|found| Ok((found, ends()?))) {
                Ok((found, (end, wanted))) => {
                    let bytes = if let Found::File(Some(end)) = found { end } else { 0 };
                    let file = File::from(fd);
                    // That of a pipe, for which nothing is waited here but what its writer and its reader do at this
                    // moment, is free when the call ends, however soon.
                    let lent = Arc::downgrade(&place_of_thread);
                    let held = matches!(found, Found::File(_)).then_some(place_of_thread);
                    // Where nobody waits for it any more nothing is read.
                    let place = match (tell.send(Ok((bytes, wanted))), found) {
                        (Err(_), _) => held,
                        (Ok(()), Found::File(size)) => {
                            read(&file, size, &sender);
                            held
                        }
                        (Ok(()), Found::Pipe) => read_to_end(&file, &end, &sender, &lent),
                    };
                    // Before its place is free, and that before the end is told. Where its call has ended nothing
                    // counts this thread, which may hang.
                    match place {
                        Some(_until_then) => drop(file),
                        None => elsewhere.close([file.into()]),
                    }
                    drop(sender);
                }
                Err(error) => {
                    // As above.
                    descriptors::close(fd);
                    drop(place_of_thread);
                    let _ = tell.send(Err(error));
                }
            }
        };
        let thread = std::thread::Builder::new().name("bulk-source".into());
        if let Err(error) = thread.spawn(work) {
            closing.close([fd]);
            return Err(unreadable(&error));
        }
        // It waits for that.
        let _ = give.send(fd);
        let gone = |_| unreadable(&io::Error::other("its thread has ended"));
        let (bytes, wanted) = told.await.map_err(gone)??;
        Ok(Self { pieces, bytes, read: 0, _wanted: wanted, place })
    }

    /// The stream's place, for who ends later than its source.
    pub fn place(&self) -> Arc<Place> {
        self.place.clone()
    }

    /// Bytes that it has; 0 for a pipe, and for a file that does not tell.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next bytes; `None` at the end. May be dropped while it waits: nothing is lost.
    ///
    /// # Errors
    /// `InvalidArgument` when it can't be read or got shorter; `TooLarge`.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let piece = self.pieces.recv().await.transpose();
        let piece = piece.map_err(|error| unreadable(&error))?;
        self.read += piece.as_ref().map_or(0, |piece| piece.len() as u64);
        check_size(self.read)?;
        Ok(piece)
    }
}

/// Finds out what `fd` is, and whether it can be a source.
fn look(fd: &OwnedFd) -> Result<Found, Error> {
    let stat = fstat(fd).map_err(|errno| unreadable(&errno.into()))?;
    let flags = fcntl(fd, FcntlArg::F_GETFL).map_err(|errno| unreadable(&errno.into()))?;
    let flags = OFlag::from_bits_retain(flags);
    if flags.contains(OFlag::O_PATH) || flags & OFlag::O_ACCMODE == OFlag::O_WRONLY {
        return Err(invalid("is not open for reading; open it so"));
    }
    match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFREG => {
            check_seals(fd, &stat)?;
            let end = end(fd, &stat).map_err(|error| unreadable(&error))?;
            check_size(end.unwrap_or(0))?;
            Ok(Found::File(end))
        }
        // Ours would be a writer's end, by which it never ends.
        SFlag::S_IFIFO if flags & OFlag::O_ACCMODE == OFlag::O_RDWR => {
            Err(invalid("is a pipe that is open for writing as well; open it for reading alone"))
        }
        SFlag::S_IFIFO => Ok(Found::Pipe),
        other => Err(invalid(&format!("is {}; {WANTED}", named(other)))),
    }
}

/// Where a file ends. The files that a kernel writes while they are read have no size, or one that
/// says nothing: they end where reading ends, as do those that are empty.
fn end(fd: &OwnedFd, stat: &FileStat) -> io::Result<Option<u64>> {
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let tells = size > 0 && fstatfs(fd)?.filesystem_type() != SYSFS;
    Ok(tells.then_some(size))
}

/// A memfd that others may still write to or cut is refused: its texts could be any.
fn check_seals(fd: &OwnedFd, stat: &FileStat) -> Result<(), Error> {
    let wanted = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_WRITE;
    match fcntl(fd, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_retain) {
        // The files of a tmpfs have seals as well, which nobody can set.
        Ok(seals) if !seals.contains(wanted) && is_memfd(fd, stat) => Err(invalid(
            "is a memfd that is not sealed; seal it with F_SEAL_SHRINK and F_SEAL_WRITE (it has to \
             be made with MFD_ALLOW_SEALING)",
        )),
        _ => Ok(()),
    }
}

/// Whether what has seals is a memfd: it is in no directory, and the kernel says so where its path
/// would be. Where that is not known, it is one.
fn is_memfd(fd: &OwnedFd, stat: &FileStat) -> bool {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    let says_so = |path: &Path| path.as_os_str().as_bytes().starts_with(b"/memfd:");
    stat.st_nlink == 0 && path.map_or(true, |path| says_so(&path))
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

/// Reads a pipe to its end, or until nobody wants more, as `end` tells. Returns the place that is `lent` as long as the
/// call goes on, to be held until the pipe is closed.
fn read_to_end(
    file: &File,
    end: &OwnedFd,
    pieces: &mpsc::Sender<io::Result<Vec<u8>>>,
    lent: &Weak<Place>,
) -> Option<Arc<Place>> {
    match read_pipe(file, end, pieces, lent) {
        // Its call waits to be told.
        Ok(true) => lent.upgrade(),
        Ok(false) => None,
        Err(error) => {
            // Nobody listens when the call has ended.
            let _ = pieces.blocking_send(Err(error));
            None
        }
    }
}

/// Reads up to `end`, or until nothing comes. Ends with the receiver, at its next piece.
fn read(file: &File, end: Option<u64>, pieces: &mpsc::Sender<io::Result<Vec<u8>>>) {
    let mut at = 0;
    while end.is_none_or(|end| at < end) {
        let piece = read_at(file, at, end);
        let length = piece.as_ref().map_or(0, Vec::len) as u64;
        // An error is the last piece, and so is an empty one, at an end that was not known; nobody
        // listens when the call has ended.
        if pieces.blocking_send(piece).is_err() || length == 0 {
            return;
        }
        at += length;
    }
}

fn read_at(file: &File, at: u64, end: Option<u64>) -> io::Result<Vec<u8>> {
    let left = end.and_then(|end| usize::try_from(end - at).ok());
    let mut piece = vec![0; left.map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES))];
    let length = loop {
        match file.read_at(&mut piece, at) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            length => break length?,
        }
    };
    if let (0, Some(end)) = (length, end) {
        let what = format!("it ends at byte {at} and had {end} when the call began");
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
    }
    piece.truncate(length);
    Ok(piece)
}

/// Reads a caller's pipe, and tells whether to its end. Its flags are the caller's too, so it can't be made
/// non-blocking, and who else reads it may be faster: what it holds is moved into a pipe of our own, without waiting
/// for more.
fn read_pipe(
    theirs: &File,
    end: &OwnedFd,
    pieces: &mpsc::Sender<io::Result<Vec<u8>>>,
    place: &Weak<Place>,
) -> io::Result<bool> {
    let (moved_out, moved_in) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    let mut moved_out = File::from(moved_out);
    loop {
        let mut either = [PollFd::new(theirs.as_fd(), PollFlags::POLLIN), hangs_up(end)];
        match poll(&mut either, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            result => result?,
        };
        if either[1].any() == Some(true) {
            return Ok(false);
        }
        // Taken for as long as this may hang.
        let Some(place_now) = place.upgrade() else { return Ok(false) };
        let flags = SpliceFFlags::SPLICE_F_NONBLOCK | SpliceFFlags::SPLICE_F_MOVE;
        let moved = match splice(theirs, None, &moved_in, None, PIECE_BYTES, flags) {
            Err(Errno::EAGAIN | Errno::EINTR) => continue,
            moved => moved?,
        };
        if moved == 0 {
            return Ok(true);
        }
        drop(place_now);
        let mut piece = vec![0; moved];
        // It is all there, and nobody else reads.
        moved_out.read_exact(&mut piece)?;
        if pieces.blocking_send(Ok(piece)).is_err() {
            return Ok(false);
        }
    }
}

/// Whether nobody can write into our own pipe any more.
fn hangs_up(end: &OwnedFd) -> PollFd<'_> {
    PollFd::new(end.as_fd(), PollFlags::empty())
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
mod tests;
