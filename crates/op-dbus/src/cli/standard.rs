//! Standard input and output, in whatever state they were handed to this process.

use std::io::{self, Read, Stdin, Stdout, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Whether standard input and standard output were closed when this process began. By the time of `main` there is
/// /dev/null in place of each that was, and all that is written to it would be lost without a word.
static CLOSED: [AtomicBool; 2] = [AtomicBool::new(false), AtomicBool::new(false)];

// SAFETY: the section is a list of functions without a result, which one thread calls before `main`. This one needs no
// more of the process than that it is there.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_THE_START: extern "C" fn() = look_whether_closed;

extern "C" fn look_whether_closed() {
    for (descriptor, closed) in (0..).zip(&CLOSED) {
        // SAFETY: it asks about a number, whether anything is open by it or not.
        let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFD) };
        closed.store(flags == -1, Ordering::Relaxed);
    }
}

/// A stream that is an error where it was closed, and that is waited for where it was handed over as one that does not
/// wait by itself (`O_NONBLOCK`), as a pipe or terminal is that others have as well.
pub struct Standard<T> {
    stream: T,
    closed: &'static AtomicBool,
}

/// Standard input.
pub fn input() -> Standard<Stdin> {
    Standard { stream: io::stdin(), closed: &CLOSED[0] }
}

/// Standard output.
pub fn output() -> Standard<Stdout> {
    Standard { stream: io::stdout(), closed: &CLOSED[1] }
}

/// Whether nobody is left to read what is written to standard output.
pub fn is_unread() -> bool {
    let stdout = io::stdout();
    let mut asked = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
    let gone = PollFlags::POLLERR | PollFlags::POLLHUP;
    poll(&mut asked, PollTimeout::ZERO).is_ok()
        && asked[0].revents().is_some_and(|events| events.intersects(gone))
}

impl<T: AsFd> Standard<T> {
    /// What `attempt` answers once the stream is `ready` for it.
    fn wait_for<R>(
        &mut self,
        ready: PollFlags,
        mut attempt: impl FnMut(&mut T) -> io::Result<R>,
    ) -> io::Result<R> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Errno::EBADF.into());
        }
        loop {
            match attempt(&mut self.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let mut stream = [PollFd::new(self.stream.as_fd(), ready)];
                    match poll(&mut stream, PollTimeout::NONE) {
                        Ok(_) | Err(Errno::EINTR) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                done => return done,
            }
        }
    }
}

impl<T: Read + AsFd> Read for Standard<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.wait_for(PollFlags::POLLIN, |stream| stream.read(bytes))
    }
}

impl<T: Write + AsFd> Write for Standard<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wait_for(PollFlags::POLLOUT, |stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.wait_for(PollFlags::POLLOUT, T::flush)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::BufWriter;
    use std::os::fd::{BorrowedFd, OwnedFd};
    use std::thread;

    use nix::fcntl::{FcntlArg, OFlag, fcntl};

    use super::*;

    static OPEN: AtomicBool = AtomicBool::new(false);

    /// As standard output has it: what is written lies in memory first.
    struct Buffered(BufWriter<File>);

    impl AsFd for Buffered {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.get_ref().as_fd()
        }
    }

    impl Write for Buffered {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            self.0.flush()
        }
    }

    fn impatient(end: impl Into<OwnedFd>) -> File {
        let end = File::from(end.into());
        fcntl(&end, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        end
    }

    #[test]
    fn an_end_of_a_pipe_that_does_not_wait_is_waited_for() {
        let bytes: Vec<u8> = (0..1 << 20).map(|number: u32| number.to_le_bytes()[1]).collect();
        // A pipe has room for a part of it alone.
        for capacity in [100, bytes.len() + 1] {
            let (reader, writer) = io::pipe().unwrap();
            let mut reader = Standard { stream: impatient(reader), closed: &OPEN };
            let stream = Buffered(BufWriter::with_capacity(capacity, impatient(writer)));
            let mut writer = Standard { stream, closed: &OPEN };
            let read = thread::spawn(move || {
                let mut read = Vec::new();
                reader.read_to_end(&mut read).map(|_| read)
            });
            writer.write_all(&bytes).unwrap();
            writer.flush().unwrap();
            drop(writer);
            assert!(read.join().unwrap().unwrap() == bytes);
        }
    }
}
