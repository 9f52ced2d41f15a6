//! Why a call was refused or failed: one sentence each: what, the limit, what was found, what to do.

use std::fmt;

use crate::backend::BackendError;

/// Why a call has no vectors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The queue is full for everybody; the call may succeed later as it is.
    #[error(
        "the queue is full: {in_flight} of {limit} tokens are in flight and this call needs \
         {needed}; try again in {retry_after_ms} ms"
    )]
    Overloaded {
        /// Tokens that this call was counted as before it was tokenized.
        needed: usize,
        /// Tokens in flight for all callers.
        in_flight: usize,
        /// `Limits::queue_tokens_max`.
        limit: usize,
        /// When enough of the queue is expected to be done, at the measured rate.
        retry_after_ms: u64,
    },
    /// What is in flight leaves no time for the call before its deadline.
    #[error(
        "{before} tokens come before the {needed} of this call, at {tokens_per_s} tokens a second, \
         which is not done in the {left_ms} ms that it allows; try again in {retry_after_ms} ms"
    )]
    Late {
        /// Tokens that this call is expected to have, as others had by what they were counted as.
        needed: usize,
        /// Tokens that are computed before it is done, of this user and of others.
        before: usize,
        /// What all workers together were seen to do.
        tokens_per_s: u64,
        /// The time until the call's deadline.
        left_ms: u64,
        /// When enough is expected to be done.
        retry_after_ms: u64,
    },
    /// This user has too much in flight; the call may succeed once earlier ones are done.
    #[error(
        "user {uid} has {in_flight} tokens in flight and this call needs {needed}, of {limit} that it may \
         have together now; wait for earlier calls, or try again in {retry_after_ms} ms"
    )]
    QuotaExceeded {
        /// The user.
        uid: u32,
        /// Tokens that this call was counted as before it was tokenized.
        needed: usize,
        /// Tokens that the user has in flight.
        in_flight: usize,
        /// `Limits::quota_tokens`; beside others what is left of the queue, if that is less.
        limit: usize,
        /// When enough of the user's earlier work is expected to be done.
        retry_after_ms: u64,
    },
    /// The call can't ever be accepted at this size.
    #[error("{excess} is {found}, the limit is {limit}; {}", excess.advice())]
    TooLarge {
        /// What is too large.
        excess: Excess,
        /// Its size.
        found: usize,
        /// The most that is accepted.
        limit: usize,
    },
    /// A text has more tokens than the model reads, and the caller asked for an error then.
    #[error(
        "text {index} has {tokens} tokens, the model reads {limit}; shorten it, or let it be \
         truncated (option truncate)"
    )]
    TooLong {
        /// Index of the text in the call.
        index: usize,
        /// Its tokens, special tokens included.
        tokens: usize,
        /// The model's maximum, special tokens included.
        limit: usize,
    },
    /// The caller's deadline passed before all vectors were there.
    #[error("the deadline passed before all texts were embedded; allow more time or send less")]
    DeadlineExceeded,
    /// The caller cancelled the call.
    #[error("the call was cancelled by its caller")]
    Cancelled,
    /// The engine takes no new calls, or stopped before this one was done.
    #[error("the service is shutting down; send the call again once it is back")]
    ShuttingDown,
    /// The batch failed twice, or no worker can be had.
    #[error("no worker could embed the texts ({0}); see the service's log")]
    WorkerFailed(#[source] BackendError),
    /// No device has memory even for an eighth of the batch.
    #[error(
        "the device or server could not hold the batch ({0}); lower batch_tokens_max, shorten the text or free its \
         memory"
    )]
    OutOfMemory(#[source] BackendError),
    /// The tokenizer has no tokens for a text.
    #[error("text {index} can't be tokenized: {reason}")]
    Untokenizable {
        /// Index of the text in the call.
        index: usize,
        /// What the tokenizer says.
        reason: String,
    },
    /// An option can't be honoured, or a token id is none of the model's.
    #[error("{0}")]
    InvalidArgument(String),
}

impl Error {
    /// Stable lower-case name of the variant, the key of [`Snapshot::failures`](crate::Snapshot).
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Overloaded { .. } | Self::Late { .. } => "overloaded",
            Self::QuotaExceeded { .. } => "quota-exceeded",
            Self::TooLarge { .. } => "too-large",
            Self::TooLong { .. } => "too-long",
            Self::DeadlineExceeded => "deadline-exceeded",
            Self::Cancelled => "cancelled",
            Self::ShuttingDown => "shutting-down",
            Self::WorkerFailed(_) => "worker-failed",
            Self::OutOfMemory(_) => "out-of-memory",
            Self::Untokenizable { .. } | Self::InvalidArgument(_) => "invalid-argument",
        }
    }
}

/// What becomes of rows that a backend has failed for good.
impl From<BackendError> for Error {
    fn from(error: BackendError) -> Self {
        match error {
            BackendError::OutOfMemory(_) => Self::OutOfMemory(error),
            error => Self::WorkerFailed(error),
        }
    }
}

/// What of a call is too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// Number of texts in one call.
    Texts,
    /// Number of lists of token ids in one call.
    Lists,
    /// Bytes of all texts of one call together.
    CallBytes,
    /// Token ids of all lists of one call together.
    CallIds,
    /// Bytes of one text and the prompt before it.
    TextBytes {
        /// Index of the text in the call.
        index: usize,
    },
    /// Token ids in place of one text.
    ListIds {
        /// Index of their list in the call.
        index: usize,
    },
    /// Tokens of one call, counted before tokenizing, against the whole queue.
    QueueTokens,
    /// Tokens of one call, counted before tokenizing, against one user's quota.
    QuotaTokens,
}

impl Excess {
    fn advice(self) -> &'static str {
        match self {
            Self::TextBytes { .. } => "split the text",
            Self::ListIds { .. } => "split the list of ids",
            Self::QueueTokens => "send less in a call, or raise queue_tokens_max",
            Self::QuotaTokens => "send less in a call, or raise quota_tokens",
            Self::Texts | Self::CallBytes => "send the texts in several calls",
            Self::Lists | Self::CallIds => "send the lists in several calls",
        }
    }
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Texts => f.write_str("the number of texts in the call"),
            Self::Lists => f.write_str("the number of lists of token ids in the call"),
            Self::CallBytes => f.write_str("the size of all texts in bytes"),
            Self::CallIds => f.write_str("the size of all lists in token ids"),
            Self::TextBytes { index } => {
                write!(f, "the size of text {index} in bytes with any prompt")
            }
            // By these words clients know which of a call's texts a sentence is about.
            Self::ListIds { index } => write!(f, "the size of text {index} in token ids"),
            Self::QueueTokens => f.write_str("the call's share of the queue in tokens"),
            Self::QuotaTokens => f.write_str("the call's share of its user's quota in tokens"),
        }
    }
}

/// Whether two sentences say the same but for numbers, as those about two processes of one fate do: who has told
/// the first need not tell the second.
#[must_use]
pub fn is_same_news(one: &str, other: &str) -> bool {
    let letters = |text: &str| text.replace(|letter: char| letter.is_ascii_digit(), "");
    letters(one) == letters(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_of_the_same_fate_is_no_news() {
        let told = |pid: u32, why: &str| format!("it {why}; process {pid} ended with signal: 9");
        assert!(is_same_news(&told(99, "said nothing"), &told(12345, "said nothing")));
        assert!(!is_same_news(&told(99, "said nothing"), &told(99, "died")));
        assert!(!is_same_news(&told(99, "died"), ""));
    }
}
