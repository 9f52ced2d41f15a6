//! What needs the tokenizer alone: counts and tokens of texts.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::Engine;
use crate::admission::{Claim, tokens_of_memory};
use crate::call::Priority;
use crate::config::Limits;
use crate::error::Error;
use crate::prepare::{Preparer, chunks, is_small, look};
use crate::tokenizer::{EncodeError, Piece, Tokenizer};

impl Engine {
    /// Tokens of each text of user `uid` before truncation, special tokens included.
    ///
    /// # Errors
    /// `TooLarge`, `Untokenizable`, `QuotaExceeded`, `Overloaded`, `ShuttingDown`.
    pub async fn count_tokens(&self, uid: u32, texts: Vec<String>) -> Result<Vec<u32>, Error> {
        let count = |tokenizer: &Tokenizer, text: &str| {
            tokenizer.count(text).map(|count| u32::try_from(count).unwrap_or(u32::MAX))
        };
        let counted = self.look(uid, ("", texts), count, false).await;
        counted.inspect_err(|error| self.scheduler().stats.failed(error))
    }

    /// The tokens of each text of user `uid` with `prefix` before it, before truncation, special tokens included.
    ///
    /// # Errors
    /// As [`count_tokens`](Self::count_tokens); `TooLarge` already beyond the size of one text,
    /// because a piece takes many times what its text does.
    pub async fn tokenize(
        &self,
        uid: u32,
        texts: Vec<String>,
        prefix: &str,
    ) -> Result<Vec<Vec<Piece>>, Error> {
        let pieces = self.look(uid, (prefix, texts), Tokenizer::pieces, true).await;
        pieces.inspect_err(|error| self.scheduler().stats.failed(error))
    }

    /// What `one` makes of each text with `prefix` before it, without embedding any. Texts that take their time have
    /// a permit for the memory that they take. Where what is made of a text takes many times as much, a call is no
    /// larger than one text may be, and one of a user is looked at after the other.
    async fn look<T: Send + 'static>(
        &self,
        uid: u32,
        (prefix, mut texts): (&str, Vec<String>),
        one: fn(&Tokenizer, &str) -> Result<T, EncodeError>,
        takes_memory: bool,
    ) -> Result<Vec<T>, Error> {
        let inner = &*self.0;
        let Limits { text_bytes_max, call_bytes_max, .. } = inner.limits;
        let bytes_max =
            if takes_memory { call_bytes_max.min(text_bytes_max) } else { call_bytes_max };
        inner.check_size(&texts, prefix.len(), bytes_max)?;
        texts.iter_mut().for_each(|text| text.insert_str(0, prefix));
        if inner.admission.is_closed() {
            return Err(Error::ShuttingDown);
        }
        if is_small(&texts) {
            return look(&inner.preparer.tokenizer, 0, &texts, one, || true);
        }
        let tokens = tokens_of_memory(texts.iter().map(String::len).sum()).max(texts.len());
        let claim = Claim { work: 0, ..Claim::new(uid, tokens, Priority::Bulk) };
        let permit = self.admit(claim, None, None)?.of_a_look();
        let line = inner.door.line(uid);
        let alone = if takes_memory { Some(line.alone().await?) } else { None };
        // Those of a caller who is gone as well: a text that was begun is made tokens of to its end.
        let held = Arc::new((permit, alone));
        let (mut all, mut results) = (Vec::with_capacity(texts.len()), Vec::new());
        for (first, texts) in chunks(texts) {
            let (done, result) = oneshot::channel();
            // A text is one part where it is told what each token stands for.
            let is_heavy = |text: &String| inner.preparer.tokenizer.is_heavy(text, !takes_memory);
            let is_heavy = texts.iter().any(is_heavy);
            let held = Arc::clone(&held);
            let task = move |preparer: &Preparer| {
                let found = look(&preparer.tokenizer, first, &texts, one, || !done.is_closed());
                drop(held);
                // The caller may be gone: then nobody wants to know.
                let _ = done.send(found);
            };
            line.send(Box::new(task), is_heavy).await?;
            results.push(result);
        }
        for result in results {
            all.extend(result.await.unwrap_or(Err(Error::ShuttingDown))?);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use crate::door::HEAVY;
    use crate::sim::SimBackend;
    use crate::{Call, EngineConfig, ModelShape, Pool};

    use super::*;

    /// One that never cuts a text.
    fn tokenizer() -> Tokenizer {
        let json = br#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],
            "normalizer":null,"pre_tokenizer":null,"post_processor":null,"decoder":null,
            "model":{"type":"WordLevel","vocab":{"x":0,"a":1},"unk_token":"x"}}"#;
        Tokenizer::from_bytes(json, 8).unwrap()
    }

    #[tokio::test]
    async fn texts_that_cannot_be_cut_keep_other_users_waiting_for_no_thread() {
        let model =
            ModelShape { dimensions: 8, max_input_tokens: 8, normalized: true, matryoshka: vec![] };
        let pool = Pool::new(Box::new(|_| Ok(Box::new(SimBackend::new(8)))));
        let config = EngineConfig { tokenizer_threads: 2, ..EngineConfig::default() };
        let engine = Engine::start(tokenizer(), model, vec![pool], config).unwrap();
        let ask = |way, uid, bytes: usize| {
            let (engine, texts) = (engine.clone(), vec!["a".repeat(bytes)]);
            async move {
                match way {
                    0 => {
                        let call = Call { uid, inputs: texts.into(), ..Call::default() };
                        engine.embed(call).await.map(drop)
                    }
                    1 => engine.count_tokens(uid, texts).await.map(drop),
                    _ => engine.tokenize(uid, texts, "").await.map(drop),
                }
            }
        };
        // As while another such text is under way.
        let heavy = HEAVY.acquire().await.unwrap();
        let waiting = [0, 0, 0, 1, 1, 1, 2].map(|way| tokio::spawn(ask(way, 1, 256 << 10)));
        tokio::task::yield_now().await;
        for way in 0..3 {
            ask(way, 2, 3 << 10).await.unwrap();
        }
        let finished = waiting.each_ref().map(tokio::task::JoinHandle::is_finished);
        assert_eq!(finished, [false; 7]);
        drop(heavy);
        for waiting in waiting {
            waiting.await.unwrap().unwrap();
        }
    }
}
