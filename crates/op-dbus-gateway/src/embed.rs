//! Embedding over the bus: what a request has for input, split into calls, put together again.

use std::collections::HashMap;
use std::time::Instant;

use op_dbus_api::{EmbedderProxy, Info, cosine, is_about_text, option, retry_after};
use tokio::time::sleep;
use zbus::Variant;

use crate::Gateway;
use crate::bus::Lease;
use crate::input::Inputs;
use crate::limits;
use crate::models;
use crate::refusal::Refusal;

/// How it is embedded.
#[derive(Default)]
pub struct Wanted {
    /// Another level than the one in force.
    pub level: Option<String>,
    /// The model that must have answered, where one was named: no option asks for it.
    pub model: Option<String>,
    /// Cut the vectors to this length.
    pub dimensions: Option<u32>,
    /// Unit length or not.
    pub normalize: Option<bool>,
    /// What happens to texts that are too long.
    pub truncate: Option<&'static str>,
    /// Name of a prompt of the model.
    pub prompt: Option<String>,
}

/// What the simulator calls its model.
const SIMULATOR: &str = "sim";

/// What a call on the bus is answered with: the vectors' bytes, how many there are, how long each is, and
/// how they came to be.
pub type Packed = (serde_bytes::ByteBuf, u32, u32, Info);

/// Vectors, and how they came to be.
#[derive(Default)]
pub struct Embedded {
    /// Little-endian 32-bit floating point numbers, row-major.
    pub bytes: Vec<u8>,
    /// How many vectors there are.
    rows: usize,
    /// Length of one vector.
    pub dimensions: usize,
    /// Tokens that were embedded, special tokens included.
    pub tokens: u64,
    /// Indices of the texts that were longer than the model reads.
    pub truncated: Vec<usize>,
    /// How many texts were answered from the service's cache.
    pub cached: u64,
    /// Model that served.
    pub model: String,
    /// Vector space, with the precision.
    pub space: String,
    /// Execution provider that computed.
    pub provider: String,
}

/// Embeds `inputs`, in as many calls as it takes.
///
/// # Errors
/// The first refusal that does not pass in time; then there is no vector at all.
pub async fn embed(
    gateway: &Gateway,
    inputs: &Inputs,
    wanted: &Wanted,
) -> Result<Embedded, Refusal> {
    let deadline = Instant::now() + limits::ANSWER_TIME;
    let mut lease = gateway.bus.lease().await?;
    let embedder = lease.embedder().await?;
    let mut all = Embedded::default();
    let texts = inputs.texts.chunks(limits::TEXTS_PER_CALL).map(Part::Texts);
    let lists = inputs.lists.chunks(limits::TEXTS_PER_CALL).map(Part::Lists);
    // The next one is the last.
    let mut parts: Vec<Part<'_>> = texts.chain(lists).rev().collect();
    while let Some(part) = parts.pop() {
        let call = part.embedded(&embedder, options(wanted, deadline, &all.space));
        match lease.answer(call).await {
            Ok(reply) => {
                all.add(reply);
                all.check_size(inputs.texts.len() + inputs.lists.len())?;
            }
            // What a call counts as is the service's to say, by its model and options.
            Err(refusal) if part.len() > 1 && is_of_all(&refusal) => parts.extend(part.halves()),
            Err(refusal) => {
                // What is computed already would be lost.
                if all.rows > 0 && passes(&refusal, deadline).await {
                    parts.push(part);
                    continue;
                }
                // The service counts from the start of its call, and the client's list may be another.
                let name = |number| inputs.name(all.rows + number);
                return Err(told(refusal, wanted, &mut lease).await.about_texts(name));
            }
        }
    }
    all.place(&inputs.places);
    match &wanted.model {
        Some(model) if *model != all.model && !all.is_simulated(wanted) => {
            gateway.models.forget();
            Err(Refusal::no_model(format!(
                "{model} was asked for and {} has taken its place meanwhile; ask for one of /v1/models",
                all.model
            )))
        }
        _ => Ok(all),
    }
}

/// What one call embeds.
#[derive(Clone, Copy)]
enum Part<'a> {
    Texts(&'a [String]),
    Lists(&'a [Vec<u32>]),
}

impl Part<'_> {
    fn len(self) -> usize {
        match self {
            Self::Texts(texts) => texts.len(),
            Self::Lists(lists) => lists.len(),
        }
    }

    /// The second half and the first.
    fn halves(self) -> [Self; 2] {
        let (first, second) = match self {
            Self::Texts(texts) => {
                let (first, second) = texts.split_at(texts.len() / 2);
                (Self::Texts(first), Self::Texts(second))
            }
            Self::Lists(lists) => {
                let (first, second) = lists.split_at(lists.len() / 2);
                (Self::Lists(first), Self::Lists(second))
            }
        };
        [second, first]
    }

    async fn embedded(
        self,
        embedder: &EmbedderProxy<'_>,
        options: HashMap<&str, Variant<'_>>,
    ) -> zbus::Result<Packed> {
        match self {
            Self::Texts(texts) => {
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                embedder.embed_packed(&texts, options).await
            }
            Self::Lists(lists) => {
                let lists: Vec<&[u32]> = lists.iter().map(Vec::as_slice).collect();
                embedder.embed_tokens(&lists, options).await
            }
        }
    }
}

/// Whether a call was too large for what its texts are together, and not for one of them.
fn is_of_all(refusal: &Refusal) -> bool {
    refusal.code() == "too_large" && !is_about_text(refusal.message())
}

/// Whether a call that was refused is to be made again, after the wait that the refusal itself asks for: not where that
/// has another reason than that the service is full for now, nor where the wait would last until the deadline.
pub async fn passes(refusal: &Refusal, deadline: Instant) -> bool {
    let pause = retry_after(refusal.message()).unwrap_or(limits::ROOM_PAUSE);
    let pause = pause.max(limits::ROOM_PAUSE_MIN);
    let passes = refusal.is_busy() && pause < deadline.saturating_duration_since(Instant::now());
    if passes {
        sleep(pause).await;
    }
    passes
}

/// What the service refused, as the request has to be told: a model that was named and can't be had is the
/// request's mistake, else it is the service's; a length that the model does not have is that of one argument; and a
/// vector space is asked for here alone, of the calls after the first.
async fn told(refusal: Refusal, wanted: &Wanted, lease: &mut Lease) -> Refusal {
    match (refusal.code(), &wanted.level) {
        ("wrong_space", _) => Refusal::changed(),
        _ if refusal.message().starts_with("dimensions is ") => refusal.about("dimensions"),
        // The second is also said of a model of other dimensions than the settings demand.
        ("model_not_installed" | "invalid_request", Some(level)) => {
            models::refused(lease, wanted.model.as_ref().unwrap_or(level), refusal).await
        }
        _ => refusal,
    }
}

/// The options of a call: those that are wanted, the time that is left, and the vector space of the calls
/// before it, if there were any.
pub fn options<'a>(
    wanted: &'a Wanted,
    deadline: Instant,
    space: &'a str,
) -> HashMap<&'static str, Variant<'a>> {
    let left = deadline.saturating_duration_since(Instant::now()).as_millis();
    let left = u32::try_from(left).unwrap_or(u32::MAX);
    let mut options = HashMap::from([(option::DEADLINE_MS, Variant::from(left))]);
    let mut add = |key, value: Option<Variant<'a>>| {
        if let Some(value) = value {
            options.insert(key, value);
        }
    };
    add(option::LEVEL, wanted.level.as_deref().map(Variant::from));
    add(option::DIMENSIONS, wanted.dimensions.map(Variant::from));
    add(option::NORMALIZE, wanted.normalize.map(Variant::from));
    add(option::TRUNCATE, wanted.truncate.map(Variant::from));
    add(option::PROMPT, wanted.prompt.as_deref().map(Variant::from));
    // All calls of a request in one space, also when the administrator changes the level meanwhile.
    add(option::EXPECT_SPACE, Some(space).filter(|space| !space.is_empty()).map(Variant::from));
    options
}

impl Embedded {
    /// The vectors as numbers.
    pub fn rows(&self) -> impl Iterator<Item = Vec<f32>> {
        let number = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
        self.row_bytes().map(move |row| row.as_chunks().0.iter().map(number).collect())
    }

    /// The vectors as they came.
    pub fn row_bytes(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks_exact((4 * self.dimensions).max(1))
    }

    /// Cosine of the first vector with each of the others.
    pub fn cosines(&self) -> Vec<f64> {
        let mut rows = self.rows();
        let first = rows.next().unwrap_or_default();
        rows.map(|row| cosine(&first, &row)).collect()
    }

    /// Refuses what would be more than a reply may take, by the first of its vectors.
    fn check_size(&self, rows: usize) -> Result<(), Refusal> {
        if rows.saturating_mul(self.dimensions) <= limits::NUMBERS {
            return Ok(());
        }
        Err(Refusal::too_large(format!(
            "the reply would have {rows} vectors of {} numbers, and {} numbers are the limit; send the \
             texts in several requests, or ask for fewer dimensions",
            self.dimensions,
            limits::NUMBERS
        )))
    }

    fn add(&mut self, (bytes, rows, dimensions, info): Packed) {
        self.bytes.extend_from_slice(&bytes);
        self.truncated.extend(info.truncated.iter().map(|index| self.rows + *index as usize));
        self.rows += rows as usize;
        self.dimensions = dimensions as usize;
        self.tokens += info.tokens;
        self.cached += u64::from(info.cached);
        (self.model, self.space, self.provider) = (info.model, info.space, info.provider);
    }

    /// Whether these are of the simulator, which serves each level under a name of its own.
    fn is_simulated(&self, wanted: &Wanted) -> bool {
        wanted.level.is_some() && self.model == SIMULATOR
    }

    /// Puts each vector to its place, where they did not come in the order of the request.
    fn place(&mut self, places: &[usize]) {
        if places.is_empty() {
            return;
        }
        let mut rows: Vec<(usize, &[u8])> = places.iter().copied().zip(self.row_bytes()).collect();
        rows.sort_unstable_by_key(|(place, _)| *place);
        self.bytes = rows.into_iter().flat_map(|(_, row)| row).copied().collect();
        let place = |index: &usize| places.get(*index).copied();
        self.truncated = self.truncated.iter().filter_map(place).collect();
        self.truncated.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_a_reply_may_take_is_told_by_its_first_vector() {
        let wide = Embedded { dimensions: 4096, ..Embedded::default() };
        assert!(wide.check_size(4096).is_ok());
        let refused = wide.check_size(4097).unwrap_err();
        assert!(
            refused.message().contains("4097 vectors of 4096 numbers"),
            "{}",
            refused.message()
        );
    }

    #[test]
    fn the_calls_of_a_request_are_put_together() {
        let told = |tokens, truncated, cached| Info {
            tokens,
            truncated,
            cached,
            space: "space".to_owned(),
            ..Info::default()
        };
        let mut all = Embedded::default();
        let bytes = |bytes: &[u8]| serde_bytes::ByteBuf::from(bytes);
        all.add((bytes(&[1, 1, 1, 1, 2, 2, 2, 2]), 2, 1, told(7, vec![1], 2)));
        all.add((bytes(&[3; 4]), 1, 1, told(5, vec![0], 1)));
        assert_eq!((all.tokens, &all.truncated, all.cached), (12, &vec![1, 2], 3));
        assert_eq!((all.bytes.len(), all.space.as_str()), (12, "space"));
        all.place(&[]);
        assert_eq!(all.bytes[0], 1);
        // Two texts that stood around a list of token ids.
        all.place(&[0, 2, 1]);
        assert_eq!(all.bytes, [1, 1, 1, 1, 3, 3, 3, 3, 2, 2, 2, 2]);
        assert_eq!(all.truncated, [1, 2]);
        all.place(&[1, 2, 0]);
        assert_eq!((all.bytes[0], all.truncated), (2, vec![0, 2]));
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_full_service_is_waited_for_and_only_where_there_is_time() {
        let deadline = Instant::now() + Duration::from_secs(60);
        for (refusal, right) in [
            (Refusal::busy("the quota is used up; try again in 10 ms"), true),
            (Refusal::busy("the queue is full"), true),
            (Refusal::busy("the queue is full; try again in 60 s"), false),
            (Refusal::invalid("try again in 10 ms"), false),
        ] {
            assert_eq!(passes(&refusal, deadline).await, right, "{refusal:?}");
        }
    }
}
