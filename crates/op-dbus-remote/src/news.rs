//! What the journal is told of an endpoint, so that one which is away for days, or comes and goes, does not
//! fill it: pure code, `now` is an argument.

use std::time::{Duration, Instant};

use op_dbus_engine::is_same_news;

/// How often the journal has one kind of news of one endpoint at most.
const EVERY: Duration = Duration::from_secs(60);

/// What the journal has of one endpoint.
#[derive(Debug, Default)]
pub struct News {
    /// Why it is not used, if that is what was told last.
    away: Option<String>,
    /// When each kind was told last.
    went: Option<Instant>,
    came: Option<Instant>,
    failed: Option<Instant>,
}

impl News {
    /// Whether it is to be told that the endpoint is not used: not again for the same reason.
    pub fn is_away(&mut self, why: &str, now: Instant) -> bool {
        let is_known = self.away.as_ref().is_some_and(|told| is_same_news(told, why));
        let is_news = !is_known && is_due(&mut self.went, now);
        if is_news {
            self.away = Some(why.to_owned());
        }
        is_news
    }

    /// Whether it is to be told that the endpoint has proved itself: where it was told to be away.
    pub fn is_back(&mut self, now: Instant) -> bool {
        let is_news = self.away.is_some() && is_due(&mut self.came, now);
        if is_news {
            self.away = None;
        }
        is_news
    }

    /// Whether it is to be told that the endpoint has not computed a batch.
    pub fn has_failed(&mut self, now: Instant) -> bool {
        is_due(&mut self.failed, now)
    }
}

fn is_due(last: &mut Option<Instant>, now: Instant) -> bool {
    let is_due = last.is_none_or(|told| now.saturating_duration_since(told) >= EVERY);
    if is_due {
        *last = Some(now);
    }
    is_due
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often it is told that an endpoint is away and that it is back, of one that for a day fails every
    /// other second, and proves itself in the seconds between if it `returns`.
    fn told(returns: bool, why: impl Fn(u64) -> String) -> (usize, usize) {
        let (mut news, start) = (News::default(), Instant::now());
        let (mut away, mut back) = (0, 0);
        for second in (0..24 * 60 * 60).step_by(2) {
            let at = |second| start + Duration::from_secs(second);
            away += usize::from(news.is_away(&why(second), at(second)));
            back += usize::from(returns && news.is_back(at(second + 1)));
        }
        (away, back)
    }

    #[test]
    fn a_day_without_an_endpoint_is_told_once() {
        assert_eq!(told(false, |second| format!("refused (os error {second})")), (1, 0));
    }

    #[test]
    fn what_comes_and_goes_or_changes_is_told_once_a_minute() {
        const MINUTES: usize = 24 * 60;
        let always = |_| "it answers 429".to_owned();
        assert_eq!(told(true, always), (MINUTES, MINUTES));
        let other = |second| "x".repeat(second as usize / 2 % 2 + 1);
        let (away, back) = told(false, other);
        assert!(away <= MINUTES && back == 0, "{away} and {back}");
    }

    #[test]
    fn a_failure_and_its_end_are_told_at_once_and_what_was_passed_over_later() {
        let (mut news, start) = (News::default(), Instant::now());
        assert!(!news.is_back(start), "nobody knew of it");
        assert!(news.is_away("refused", start) && news.is_back(start));
        assert!(!news.is_back(start + EVERY), "no news, however often it proves itself");
        assert!(news.is_away("refused", start + EVERY));
        assert!(news.is_back(start + EVERY) && !news.is_away("refused", start + EVERY));
        assert!(news.is_away("refused", start + 2 * EVERY), "it is away still");
        assert!(
            news.has_failed(start) && !news.has_failed(start) && news.has_failed(start + EVERY)
        );
    }
}
