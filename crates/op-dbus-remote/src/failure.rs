//! Why an endpoint gave no vectors, by what that means for the batch.

use std::fmt;
use std::time::Duration;

/// Characters that are told of a reason.
const TOLD_CHARS_MAX: usize = 400;

/// What libraries say of a connection that comes to nothing, and what to do.
const CURES: [(&str, &str); 3] = [
    ("UnknownIssuer", "set ca_file in [providers.remote] to its authority's certificate"),
    ("CaUsedAsEndEntity", "it is an authority's own, and a server's is to be signed by one"),
    ("InvalidContentType", "that is no TLS, and the URL of a server without has http or grpc"),
];

/// Why there are no vectors.
#[derive(Debug)]
pub enum Failure {
    /// Nobody has answered, or not in time.
    Absent(String),
    /// The endpoint can't be used now: it refuses us, or it is not what it should be.
    Away(String),
    /// The same, in words that may be the endpoint's: of a caller's batch they are not told, as they may
    /// be the text.
    Quoted(String),
    /// It wants to be asked again after this time, and is what it was.
    Busy(String, Duration),
    /// It failed this batch, or fails everything: with a status that says neither that it is away nor
    /// whose fault it is, or with what makes no sense.
    Failed(String),
    /// It does not take this batch, and has computed nothing of it: its status says that of the request, or
    /// that what stands before it has not reached it.
    Declined(String),
    /// It refuses this batch; others it may take.
    Refused(String),
    /// The batch is too large for it.
    TooLarge(String),
}

impl Failure {
    /// There was no connection, or no more, in a library's words; with a cure where there is one.
    pub fn absent(why: String) -> Self {
        match CURES.iter().find(|(word, _)| why.contains(word)) {
            Some((_, cure)) => Self::Absent(format!("{why}; {cure}")),
            None => Self::Absent(why),
        }
    }

    /// An answer that makes no sense, told in our own words.
    pub fn nonsense(what: impl fmt::Display) -> Self {
        Self::Failed(format!("its answer makes no sense: {what}"))
    }

    /// The same, told with what the endpoint said.
    pub fn unreadable(what: impl fmt::Display) -> Self {
        Self::Quoted(format!("its answer makes no sense: {what}"))
    }

    /// A request that could not be made.
    pub fn unwritable(why: impl fmt::Display) -> Self {
        Self::Away(format!("the request can't be written ({why})"))
    }

    /// Whether another batch may fare better at the same endpoint.
    pub fn may_be_the_batch(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::Declined(_) | Self::Refused(_) | Self::TooLarge(_))
    }

    /// Whether it says that it does not take this batch.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Declined(_) | Self::Refused(_) | Self::TooLarge(_))
    }

    /// What may be told where a caller's batch was sent.
    pub fn unquoted(self) -> Self {
        match self {
            Self::Quoted(_) => Self::Failed("its answer makes no sense".to_owned()),
            other => other,
        }
    }
}

/// Without what could change a terminal, and not at any length.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Absent(why)
        | Self::Away(why)
        | Self::Quoted(why)
        | Self::Busy(why, _)
        | Self::Failed(why)
        | Self::Declined(why)
        | Self::Refused(why)
        | Self::TooLarge(why)) = self;
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        why.chars().take(TOLD_CHARS_MAX).map(plain).try_for_each(|c| fmt::Write::write_char(f, c))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_plain_and_bounded() {
        let told = Failure::unreadable("\u{1b}[31mred\r\n").to_string();
        assert_eq!(told, "its answer makes no sense:  [31mred  ");
        assert_eq!(Failure::Away("x".repeat(5000)).to_string().len(), TOLD_CHARS_MAX);
        let unquoted = Failure::unreadable("a caller's text").unquoted().to_string();
        assert_eq!(unquoted, "its answer makes no sense");
        let own = Failure::nonsense("it is longer than 9 bytes").unquoted().to_string();
        assert!(own.ends_with("9 bytes"), "{own}");
    }
}
