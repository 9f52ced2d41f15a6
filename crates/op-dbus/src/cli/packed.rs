//! One packed call: its options, its size, the wait while the service is full, its reply.

use std::collections::HashMap;
use std::time::Duration;

use clap::ValueEnum;
use op_dbus_api::{EmbedderProxy, ErrorName, info, option};
use zbus::Variant;

use super::output::Vectors;
use super::texts::CallLimits;
use super::{Failure, Service};

/// Texts in one call; more would only delay the first vector.
const CALL_TEXTS_MAX: usize = 256;
/// Bytes of text in one call, far below what a bus carries in one message.
const CALL_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How often a call is tried when the service is full, and the first pause; each is twice the last.
const TRIES_MAX: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The options of a packed call.
#[derive(clap::Args, Clone)]
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
    /// Give a call up after this many milliseconds
    #[arg(long, value_name = "MS")]
    deadline_ms: Option<u32>,
    /// Queue class; calls with many texts are `bulk` unless you say otherwise
    #[arg(long, value_enum)]
    priority: Option<Priority>,
    /// Refuse unless the vectors are in this vector space (see `op-dbus status`)
    #[arg(long, value_name = "SPACE")]
    expect_space: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Truncate {
    /// Refuse the call
    Error,
    /// Cut the end (default)
    End,
    /// Cut the start
    Start,
    /// Mean over chunks of the whole text
    Mean,
}

#[derive(Clone, Copy, ValueEnum)]
enum Priority {
    /// Before bulk work
    Interactive,
    /// When nobody is waiting
    Bulk,
}

fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

impl Options {
    fn to_dict(&self) -> HashMap<&'static str, Variant<'_>> {
        let texts = [
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
    /// Limits within those of the service; a service without the properties gets small calls.
    pub fn new(
        texts: Option<usize>,
        reply_bytes: Option<usize>,
        text_bytes: Option<usize>,
    ) -> Self {
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

/// What each call needs.
pub struct Caller {
    pub service: Service,
    pub embedder: EmbedderProxy<'static>,
    pub options: Options,
}

/// The answer to one call.
pub struct Reply {
    /// Number of the first text over all calls.
    pub first: u64,
    pub texts: Vec<String>,
    pub values: Vec<f32>,
    pub dimensions: usize,
    pub truncated: Vec<u32>,
    pub space: String,
    pub model: String,
    pub served_by: String,
    pub tokens: u64,
}

impl Caller {
    /// The vectors of `texts`, of which the first is number `first` over all calls.
    pub async fn call(&self, first: u64, texts: Vec<String>) -> Result<Reply, Failure> {
        let borrowed: Vec<&str> = texts.iter().map(String::as_str).collect();
        let mut pause = FIRST_PAUSE;
        for last_try in (0..TRIES_MAX).map(|number| number + 1 == TRIES_MAX) {
            match self.embedder.embed_packed(&borrowed, self.options.to_dict()).await {
                Ok((bytes, rows, dimensions, info)) => {
                    return Reply::new((first, texts), (&bytes, rows, dimensions), &info);
                }
                // Our own earlier calls may be what fills the queue: wait for them.
                Err(error) if is_full(&error) && !last_try => tokio::time::sleep(pause).await,
                Err(error) => {
                    return Err(self.service.failure(&error).about_texts_from(first));
                }
            }
            pause *= 2;
        }
        Err(Failure::refused("the service stayed full; try again later"))
    }
}

fn is_full(error: &zbus::Error) -> bool {
    let name = op_dbus_api::Error::from_reply(error).map(|error| error.name());
    matches!(name, Some(ErrorName::Overloaded | ErrorName::QuotaExceeded))
}

type Info = HashMap<String, zbus::OwnedVariant>;

impl Reply {
    fn new(
        (first, texts): (u64, Vec<String>),
        matrix: (&[u8], u32, u32),
        info: &Info,
    ) -> Result<Self, Failure> {
        let (bytes, rows, dimensions) = (matrix.0, matrix.1 as usize, matrix.2 as usize);
        let bytes_wanted = rows.saturating_mul(dimensions).saturating_mul(4);
        if rows != texts.len() || bytes.len() != bytes_wanted {
            return Err(Failure::refused(format!(
                "the service answered {} texts with {rows} rows of {dimensions} values in {} bytes",
                texts.len(),
                bytes.len()
            )));
        }
        let text = |key: &str| match info.get(key).map(|value| &**value) {
            Some(Variant::Str(text)) => text.as_str().to_owned(),
            _ => String::new(),
        };
        let truncated = info.get(info::TRUNCATED).and_then(|value| value.try_clone().ok());
        let tokens = info.get(info::TOKENS).and_then(|value| u64::try_from(&**value).ok());
        Ok(Self {
            first,
            texts,
            values: bytes
                .as_chunks::<4>()
                .0
                .iter()
                .map(|bytes| f32::from_le_bytes(*bytes))
                .collect(),
            dimensions,
            truncated: truncated.and_then(|v| Vec::try_from(v).ok()).unwrap_or_default(),
            space: text(info::SPACE),
            model: text(info::MODEL),
            served_by: format!("{}, {}", text(info::DEVICE), text(info::PRECISION)),
            tokens: tokens.unwrap_or(0),
        })
    }

    /// The vectors for a writer.
    pub fn vectors(&self) -> Vectors<'_> {
        Vectors {
            first: self.first,
            texts: &self.texts,
            values: &self.values,
            dimensions: self.dimensions,
            truncated: &self.truncated,
            space: &self.space,
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A reply of two dimensions.
    pub fn reply(texts: usize, space: &str, truncated: &[u32]) -> Reply {
        let value = |value: Variant<'_>| value.try_into_owned().expect("no descriptor in it");
        let info = HashMap::from([
            (info::SPACE.to_owned(), value(space.into())),
            (info::TOKENS.to_owned(), value(7_u64.into())),
            (info::TRUNCATED.to_owned(), value(truncated.to_vec().into())),
        ]);
        let bytes: Vec<u8> =
            std::iter::repeat_n(1.5_f32.to_le_bytes(), texts * 2).flatten().collect();
        Reply::new((0, vec![String::new(); texts]), (&bytes, texts as u32, 2), &info)
            .expect("it fits")
    }

    #[test]
    fn a_reply_is_read_whole() {
        let reply = reply(2, "ab-f32", &[1]);
        assert_eq!(reply.values, [1.5; 4]);
        assert_eq!((reply.tokens, reply.space.as_str()), (7, "ab-f32"));
        assert_eq!(reply.truncated, [1]);
    }

    #[test]
    fn a_reply_of_another_size_is_refused() {
        let info = HashMap::new();
        assert!(Reply::new((0, vec![String::new()]), (&[0; 8], 2, 1), &info).is_err());
        assert!(Reply::new((0, vec![String::new()]), (&[0; 8], 1, 3), &info).is_err());
        assert!(Reply::new((0, vec![String::new()]), (&[], 1, u32::MAX), &info).is_err());
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
