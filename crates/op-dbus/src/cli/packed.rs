//! One call for vectors: its options, its size, its reply.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use clap::ValueEnum;
use op_dbus_api::{Info, cosine, option};
use op_dbus_daemon::bus::encoding::Encoding;
use zbus::Variant;

use super::cut::{Cut, Truncate};
use super::numbers::{encodings, floats};
use super::texts::CallLimits;
use super::{Failure, Properties};

/// Texts in one call whose vectors come in its reply.
const CALL_TEXTS_MAX: usize = 256;
/// Texts in one call by file descriptors: a few batches, so that what a call costs by itself does not
/// show, and no more, since their vectors come together.
const BULK_CALL_TEXTS_MAX: usize = 2048;
/// Bytes of text in one call, far below what a bus carries in one message.
pub const CALL_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How much later than its deadline a call may be answered.
const DEADLINE_GRACE: Duration = Duration::from_secs(5);

/// The options of a packed call.
#[derive(clap::Args, Clone, Default)]
#[command(next_help_heading = "Embedding")]
pub struct Options {
    /// Serve with another installed level: `low`, `medium` or `high`
    #[arg(long)]
    level: Option<String>,
    /// Put this prompt of the model before each text, for example `query`
    #[arg(long, value_name = "NAME")]
    prompt: Option<String>,
    /// What happens to a text that is longer than the model reads
    #[arg(long, value_enum)]
    truncate: Option<Truncate>,
    /// Shorten the vectors, for models trained for it
    #[arg(long, value_name = "N")]
    dimensions: Option<u32>,
    /// What vectors are made of: floats of 32 or 16 bits, bytes (each vector scaled by itself to
    /// -127 … 127), or signs as bits, eight in a byte
    #[arg(long, value_parser = encodings(), default_value = "f32")]
    pub(super) encoding: Encoding,
    /// Fail where a call to the service takes more than this many milliseconds; many texts are many
    /// calls, and the command goes on for as long as each of them is in time
    #[arg(long, value_name = "MS")]
    deadline_ms: Option<u32>,
    /// Queue class; calls with 64 texts or more are `bulk` in any case
    #[arg(long, value_enum)]
    priority: Option<Priority>,
    /// Refuse unless the vectors are in this vector space (see `op-dbus status`)
    #[arg(long, value_name = "SPACE")]
    expect_space: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Priority {
    /// Before bulk work
    Interactive,
    /// Behind interactive work, but never without its share
    Bulk,
}

/// The name of a choice on the command line, which is also how it travels.
pub fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

impl Options {
    /// The limits of a call when there are many texts, where `inline` are those of a call whose
    /// vectors come in the reply. A deadline is for each call, so calls with one stay small.
    pub fn limits(&self, inline: CallLimits) -> CallLimits {
        match self.deadline_ms {
            Some(_) => inline,
            None => CallLimits { texts_max: BULK_CALL_TEXTS_MAX, ..inline },
        }
    }

    /// When a call is given up.
    pub fn deadline(&self) -> Option<Duration> {
        Some(Duration::from_millis(self.deadline_ms?.into()))
    }

    /// How long the answer to one try is waited for: a service may not keep a deadline.
    pub fn limit(&self) -> Option<Duration> {
        Some(self.deadline()? + DEADLINE_GRACE)
    }

    /// To collect the texts that are too long, for what these options do with them.
    pub fn cut(&self) -> Cut {
        Cut::by(self.truncate)
    }

    /// As they travel.
    pub fn to_dict(&self) -> HashMap<&'static str, Variant<'_>> {
        // One that nobody asked for is not named: a service may be older than the option.
        let encoding = Some(self.encoding).filter(|encoding| *encoding != Encoding::default());
        let texts = [
            (option::ENCODING, encoding.map(|encoding| encoding.name().to_owned())),
            (option::LEVEL, self.level.clone()),
            (option::PROMPT, self.prompt.clone()),
            (option::TRUNCATE, self.truncate.map(name_of)),
            (option::PRIORITY, self.priority.map(name_of)),
            (option::EXPECT_SPACE, self.expect_space.clone()),
        ];
        let numbers =
            [(option::DIMENSIONS, self.dimensions), (option::DEADLINE_MS, self.deadline_ms)];
        let texts = texts.into_iter().filter_map(|(key, v)| Some((key, Variant::from(v?))));
        let numbers = numbers.into_iter().filter_map(|(key, v)| Some((key, Variant::from(v?))));
        texts.chain(numbers).collect()
    }
}

impl CallLimits {
    /// Limits within those that the service tells.
    pub fn of(service: &Properties) -> Self {
        Self::new(
            service.number("TextsPerCallMax"),
            service.number("InlineReplyBytesMax"),
            service.number("TextBytesMax"),
        )
    }

    /// The same; a service without the properties gets small calls.
    fn new(texts: Option<usize>, reply_bytes: Option<usize>, text_bytes: Option<usize>) -> Self {
        // Room for the longest vectors of any usual model; the call may ask for another level.
        let row_bytes_max = 4 * 4096;
        let rows = reply_bytes.unwrap_or(0) / row_bytes_max;
        Self {
            texts_max: CALL_TEXTS_MAX.min(texts.unwrap_or(1)).min(rows).max(1),
            bytes_max: CALL_BYTES_MAX,
            text_bytes_max: text_bytes.unwrap_or(CALL_BYTES_MAX),
        }
    }
}

/// The answer to one call.
pub struct Reply {
    /// Number of the first text over all calls.
    pub first: u64,
    pub texts: Vec<String>,
    /// Row-major, in the encoding.
    pub bytes: Bytes,
    pub encoding: Encoding,
    pub dimensions: usize,
    /// Positions in this call of the texts that were longer than the model reads, ascending.
    pub truncated: Vec<u32>,
    pub space: String,
    pub model: String,
    pub served_by: String,
    pub tokens: u64,
}

/// The vector space that the replies are in so far.
#[derive(Default)]
pub struct Space(Option<String>);

impl Space {
    /// What to say if the vectors of `reply` can't be compared with those before: the service may have
    /// been given another level meanwhile. Its precision may change at any time, as where the CPU helps
    /// a device out, and says nothing about that.
    pub fn change(&mut self, reply: &Reply) -> Option<String> {
        let space = self.0.get_or_insert_with(|| reply.space.clone());
        let fingerprint = |space: &str| space.split('-').next().map(ToOwned::to_owned);
        let changed = fingerprint(space) != fingerprint(&reply.space);
        let Reply { space: now, .. } = reply;
        changed.then(|| format!("the service changed its vector space from {space} to {now}"))
    }
}

impl Reply {
    /// What the service answered, for its texts.
    ///
    /// # Errors
    /// When it is for another number of them, or has another size than it tells.
    pub fn new(
        (first, texts): (u64, Vec<String>),
        (bytes, encoding): (Bytes, Encoding),
        (rows, dimensions): (u32, u32),
        info: Info,
    ) -> Result<Self, Failure> {
        let (rows, dimensions) = (rows as usize, dimensions as usize);
        if rows != texts.len() || bytes.len() != rows.saturating_mul(encoding.row_bytes(dimensions))
        {
            return Err(Failure::refused(format!(
                "the service answered {} texts with {rows} rows of {dimensions} dimensions as {}, and \
                 {} bytes came",
                texts.len(),
                encoding.name(),
                bytes.len()
            )));
        }
        let Info { truncated, space, model, tokens, .. } = info;
        let served_by = format!("{}, {}", info.device, info.precision);
        Ok(Self {
            first,
            texts,
            bytes,
            encoding,
            dimensions,
            truncated,
            space,
            model,
            served_by,
            tokens,
        })
    }

    /// Takes in the reply to the texts that follow.
    ///
    /// # Errors
    /// When the vectors of both can't be compared.
    pub fn add(&mut self, next: Self) -> Result<(), Failure> {
        if let Some(change) = Space(Some(self.space.clone())).change(&next) {
            let said = "between two calls for texts that go together; start again";
            return Err(Failure::refused(format!("{change} {said}")));
        }
        let before = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        self.truncated.extend(next.truncated.iter().map(|index| index.saturating_add(before)));
        self.bytes = [&*self.bytes, &*next.bytes].concat().into();
        self.texts.extend(next.texts);
        self.tokens += next.tokens;
        Ok(())
    }

    /// How alike each vector, in single precision, is to the last one.
    pub fn cosines_with_last(&self) -> Vec<f64> {
        let values: Vec<f32> = floats(&self.bytes).collect();
        let mut rows = values.chunks_exact(self.dimensions.max(1));
        let last = rows.next_back().unwrap_or_default();
        rows.map(|row| cosine(row, last)).collect()
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A reply of two dimensions.
    pub fn reply(texts: usize, space: &str, truncated: &[u32]) -> Reply {
        let (space, truncated) = (space.to_owned(), truncated.to_vec());
        let info = Info { space, tokens: 7, truncated, ..Info::default() };
        let bytes = 1.5_f32.to_le_bytes().repeat(texts * 2);
        let vectors = (bytes.into(), Encoding::F32);
        Reply::new((0, vec![String::new(); texts]), vectors, (texts as u32, 2), info)
            .expect("it fits")
    }

    #[test]
    fn each_vector_is_compared_with_the_last() {
        let reply = reply(3, "s", &[]);
        assert_eq!(reply.cosines_with_last().len(), 2);
        assert!(reply.cosines_with_last().iter().all(|cosine| (cosine - 1.0).abs() < 1e-12));
        assert!(Reply { bytes: Vec::new().into(), ..reply }.cosines_with_last().is_empty());
    }

    #[test]
    fn a_reply_of_another_size_is_refused() {
        for (bytes, shape, encoding) in [
            (8, (2, 1), Encoding::F32),
            (8, (1, 3), Encoding::F32),
            (0, (1, u32::MAX), Encoding::F32),
            (8, (1, 2), Encoding::F16),
            (2, (1, 8), Encoding::B1),
        ] {
            let vectors = (vec![0; bytes].into(), encoding);
            let reply = Reply::new((0, vec![String::new()]), vectors, shape, Info::default());
            assert!(reply.is_err(), "{bytes} bytes of {shape:?} as {}", encoding.name());
        }
    }

    #[test]
    fn calls_stay_within_the_limits_of_the_service() {
        let texts_max = |texts, bytes| CallLimits::new(texts, bytes, Some(1)).texts_max;
        assert_eq!(texts_max(Some(4096), Some(16 << 20)), 256);
        assert_eq!(texts_max(Some(100), Some(16 << 20)), 100);
        assert_eq!(texts_max(Some(4096), Some(10)), 1);
        assert_eq!(texts_max(None, None), 1);
    }
}
