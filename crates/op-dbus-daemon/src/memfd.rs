//! Memory that one process writes, and that nobody can change once it has been sealed.

use std::ffi::CStr;
use std::fs::File;
use std::io;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// How often it is tried to seal what somebody holds a page of.
const TRIES: u32 = 5;

/// An empty memfd that can be sealed.
///
/// # Errors
/// When the kernel gives none.
pub fn create(name: &CStr) -> io::Result<File> {
    let memfd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    Ok(File::from(memfd))
}

/// Takes from everybody, this process included, the right to change a memfd that nobody else has yet.
///
/// The kernel itself may hold a page for a moment, as reclaim does that looks at pages; then it refuses
/// after it has waited for some 150 ms (`EBUSY`). Each further try first has it let go of those that it
/// holds for nothing but a list of its own. All of them together take less than a second.
///
/// # Errors
/// When it is mapped for writing, or a page of it is held for longer.
pub fn seal(memfd: &File) -> io::Result<()> {
    let seals = SealFlag::F_SEAL_SHRINK
        | SealFlag::F_SEAL_GROW
        | SealFlag::F_SEAL_WRITE
        | SealFlag::F_SEAL_SEAL;
    for _ in 1..TRIES {
        match fcntl(memfd, FcntlArg::F_ADD_SEALS(seals)) {
            Err(Errno::EBUSY) => {}
            result => return Ok(result.map(drop)?),
        }
    }
    Ok(fcntl(memfd, FcntlArg::F_ADD_SEALS(seals)).map(drop)?)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::Barrier;
    use std::thread;

    use nix::fcntl::{SpliceFFlags, splice};

    use super::*;

    /// A pipe that a page was spliced into holds it, for longer than the kernel waits.
    #[test]
    fn a_page_that_is_held_for_a_moment_does_not_keep_it_from_being_sealed() {
        let mut memfd = create(c"test").unwrap();
        memfd.write_all(&[1; 4096]).unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let spliced = splice(&memfd, Some(&mut 0), &writer, None, 4096, SpliceFFlags::empty());
        assert_eq!(spliced, Ok(4096));
        let refused = || {
            let seals = FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE);
            assert_eq!(fcntl(&memfd, seals), Err(Errno::EBUSY));
        };
        refused();
        // A thread may take longer to start than is tried.
        let begin = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                begin.wait();
                // The kernel lets one try at a time, in turn: the other thread has had one when this
                // one has had two.
                (0..2).for_each(|_| refused());
                reader.read_exact(&mut [0; 4096]).unwrap();
            });
            begin.wait();
            seal(&memfd).unwrap();
        });
    }
}
