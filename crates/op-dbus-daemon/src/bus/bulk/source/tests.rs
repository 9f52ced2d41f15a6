//! What is read of what, and what is refused.

use std::io::Write;
use std::sync::Arc;

use super::*;
use crate::bus::bulk::{Budget, Work};

fn place() -> Place {
    Arc::<Budget>::default().place(0, Work::Stream).unwrap()
}

async fn open(fd: impl Into<OwnedFd>, place: Place) -> Result<Source, Error> {
    Source::open(fd.into(), place, &Arc::default()).await
}

async fn all(source: &mut Source) -> Result<Vec<u8>, Error> {
    let mut all = Vec::new();
    while let Some(piece) = source.next().await? {
        all.extend(piece);
    }
    Ok(all)
}

async fn read_whole(fd: impl Into<OwnedFd>) -> Vec<u8> {
    all(&mut open(fd, place()).await.unwrap()).await.unwrap()
}

async fn refusal(fd: impl Into<OwnedFd>) -> (ErrorName, String) {
    let error = open(fd, place()).await.unwrap_err();
    (error.name(), error.message().to_owned())
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
async fn a_file_that_gets_shorter_is_an_error_and_one_that_grows_is_not_followed() {
    let named = tempfile::NamedTempFile::new().unwrap();
    named.as_file().set_len(3 * PIECE_BYTES as u64).unwrap();
    let reader = |bytes| {
        let file = named.as_file().try_clone().unwrap();
        let (sender, pieces) = mpsc::channel(PIECES_AHEAD);
        std::thread::spawn(move || read(&file, Some(bytes), &sender));
        let wanted = pipe2(OFlag::O_CLOEXEC).unwrap().1;
        Source { pieces, bytes, read: 0, _wanted: wanted, place: Arc::new(place()) }
    };
    let error = all(&mut reader(4 * PIECE_BYTES as u64)).await.unwrap_err();
    assert!(error.message().contains("ends at byte 196608"), "{error}");
    assert_eq!(all(&mut reader(10)).await.unwrap(), [0; 10]);
    named.as_file().set_len(1 << 40).unwrap();
    let sparse = named.as_file().try_clone().unwrap();
    assert_eq!(refusal(sparse).await.0, ErrorName::TooLarge);
}

/// Its texts wait to be embedded then, and its result takes a descriptor.
#[tokio::test]
async fn a_file_that_is_read_keeps_its_place_as_long_as_its_call() {
    let budget = Arc::<Budget>::default();
    let mut call = Vec::new();
    for _ in 0..4 {
        let file = tempfile::tempfile().unwrap();
        let place = budget.place(0, Work::Stream).unwrap();
        let mut source = open(file, place).await.unwrap();
        all(&mut source).await.unwrap();
        call.push(source);
    }
    budget.place(0, Work::Stream).unwrap_err();
    let place = call.pop().unwrap().place();
    budget.place(0, Work::Stream).unwrap_err();
    drop(place);
    budget.place(0, Work::Stream).unwrap();
}

#[tokio::test]
async fn a_pipe_is_read_to_its_end_and_keeps_its_flags() {
    let (read_end, mut write_end) = io::pipe().unwrap();
    let flags = || fcntl(&read_end, FcntlArg::F_GETFL).unwrap();
    let before = flags();
    let mut source = open(read_end.try_clone().unwrap(), place()).await.unwrap();
    let writer = std::thread::spawn(move || write_end.write_all(&[7; 1 << 20]));
    assert_eq!(all(&mut source).await.unwrap(), vec![7; 1 << 20]);
    writer.join().unwrap().unwrap();
    assert_eq!(flags(), before);
}

#[tokio::test]
async fn a_pipe_that_its_reader_could_write_to_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let both = File::options().read(true).write(true).open(&path).unwrap();
    let (name, message) = refusal(both).await;
    assert_eq!(name, ErrorName::InvalidArgument);
    assert!(message.ends_with("; open it for reading alone"), "{message}");
}
