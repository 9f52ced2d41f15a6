//! What callers send over the bus: a dictionary of options, and texts behind a descriptor.

use std::io::Write;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use op_dbus_api::{Error, ErrorName, option};
use tokio::runtime::{Builder, Runtime};
use zbus::wire::LE;
use zbus::wire::serialized::{Context, Data};

use super::bulk::{Budget, Framing, Records, Source, Work};
pub(crate) use super::direct::fuzz::direct;
use super::options::{self, Given};
use crate::memfd;

const TEXT_BYTES_MAX: usize = 16;

pub(super) static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_all().build().expect("a runtime"));

/// The options of a method, as they come over the bus: `a{sv}`.
pub(crate) fn options(bytes: &[u8]) -> bool {
    let data = Data::new(bytes, Context::new(LE, 0));
    let Ok((Given(given), _)) = data.deserialize::<Given<'_>>() else { return false };
    let now = Instant::now();
    let refusals = [
        options::parse(&given, &[], now).err(),
        options::parse(&given, option::OF_FDS, now).err(),
        options::parse_for_tokens(&given, now).err(),
    ];
    let understood = !given.is_empty() && refusals.iter().any(Option::is_none);
    for error in refusals.into_iter().flatten() {
        assert_eq!(error.name(), ErrorName::InvalidArgument);
        assert!(error.message().len() < 1000, "{error}");
    }
    understood
}

/// How texts follow one another, how many bytes come at once, and the bytes: the same texts come out of
/// pieces, of a sealed memfd and of all at once.
pub(crate) fn texts(bytes: &[u8]) -> bool {
    let [framing, piece, bytes @ ..] = bytes else { return false };
    let (_, framing) = Framing::NAMES[usize::from(*framing) % Framing::NAMES.len()];
    let whole = taken_apart(framing, [bytes]);
    let pieces = taken_apart(framing, bytes.chunks(usize::from(*piece).max(1)));
    assert_eq!(whole, pieces);
    let read = RUNTIME.block_on(read(bytes)).expect("a memfd of ours");
    assert_eq!(whole, taken_apart(framing, [&read[..]]));
    for text in whole.iter().flatten() {
        assert!(text.len() <= TEXT_BYTES_MAX && !text.contains('\0'), "{text:?}");
    }
    whole.is_ok_and(|texts| !texts.is_empty())
}

fn taken_apart<'a>(
    framing: Framing,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Result<Vec<String>, (ErrorName, String)> {
    let mut records = Records::new(framing, TEXT_BYTES_MAX);
    let mut texts = Vec::new();
    let told = |error: Error| (error.name(), error.message().to_owned());
    for piece in pieces {
        records.push(piece, |text| texts.push(text)).map_err(told)?;
    }
    texts.extend(records.finish().map_err(told)?);
    Ok(texts)
}

/// The bytes behind a descriptor as a call reads them.
async fn read(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let mut file = memfd::create(c"fuzz").expect("memory");
    file.write_all(bytes).expect("memory");
    memfd::seal(&file).expect("seals");
    let place = Arc::<Budget>::default().place(0, Work::Stream)?;
    let mut source = Source::open(file.into(), place, &Arc::default()).await?;
    let mut read = Vec::new();
    while let Some(piece) = source.next().await? {
        read.extend(piece);
    }
    Ok(read)
}
