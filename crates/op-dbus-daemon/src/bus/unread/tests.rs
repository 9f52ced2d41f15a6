//! What has room, and what does not: without a bus, but for one that does not tell.

use std::collections::HashMap;
use std::pin::pin;

use futures_util::{FutureExt, StreamExt};
use op_dbus_api::INLINE_REPLY_BYTES_MAX;
use zbus::{Message, MessageStream, Variant};

use super::super::caller::Callers;
use super::super::tests::on_bus;
use super::*;

const LARGE: u64 = INLINE_REPLY_BYTES_MAX as u64 + REPLY_BYTES;

fn sums(its: u64, own: u64, others: u64) -> Sums {
    Sums { its: its << 20, own: own << 20, others: others << 20 }
}

/// How a caller stands, by going through all of them.
fn counted(shares: &Shares, (name, uid): (&str, u32)) -> Standing {
    let sums = |bytes: fn(&Share) -> u64| {
        let all = shares.all();
        let sum = |is: &dyn Fn(&str, u32) -> bool| -> u64 {
            all.iter()
                .filter(|(name, share)| is(name, share.uid))
                .map(|(_, share)| bytes(share))
                .sum()
        };
        let its = sum(&|of, _| of == name);
        Sums { its, own: sum(&|_, of| of == uid), others: sum(&|_, of| of != uid) }
    };
    Standing { unread: sums(Share::unread), held: sums(|share| share.held) }
}

#[test]
fn callers_users_and_others_are_summed_whatever_changes() {
    let mut shares = Shares::default();
    let callers = [(":1", 1), (":2", 1), (":3", 2), (":4", 3)];
    let callers = callers.map(|(name, uid)| (Arc::<str>::from(name), uid));
    for step in 0..1000_u64 {
        let (name, uid) = &callers[(step % 4) as usize];
        match step * 7 / 4 % 9 {
            0..4 => shares.add((name, *uid), |share| share.since += step),
            4 => shares.add((name, *uid), |share| share.held += step),
            5 => shares.change(name, |share| share.held /= 2),
            6 => shares.change(name, |share| share.learn(*share, step % 50)),
            7 => shares.forget_empty(),
            _ => shares.remove(name),
        }
        for (name, uid) in &callers {
            let who = (&**name, *uid);
            assert_eq!(shares.standing(who), counted(&shares, who), "after step {step}");
        }
    }
    assert!(!shares.all().is_empty());
    for (name, _) in &callers {
        shares.remove(name);
    }
    assert_eq!(shares.standing((":1", 1)), Standing::default());
}

#[test]
fn who_reads_has_room_whatever_others_leave() {
    assert!(sums(0, 0, 0).fit(LARGE));
    assert!(!sums(24, 24, 0).fit(1));
    // Another connection of that user, and one of it beside two of them.
    assert!(sums(0, 24, 0).fit(LARGE));
    assert!(sums(0, 48, 0).fit(SMALL_BYTES) && !sums(0, 48, 0).fit(LARGE));
    let reads = Sums { its: 1000, ..sums(0, 50, 0) };
    assert!(reads.fit(1000) && !sums(0, 52, 0).fit(1000));
    // Other users, also behind two who have all that they may.
    assert!(sums(0, 0, 48).fit(LARGE) && sums(0, 0, 72).fit(LARGE));
    assert!(sums(1, 1, 72).fit(SMALL_BYTES));
}

#[test]
fn it_is_looked_before_anybody_waits() {
    assert!(!sums(11, 11, 0).is_much() && sums(13, 13, 0).is_much() && sums(1, 25, 0).is_much());
}

/// However many users and connections there are.
#[test]
fn nobody_fills_the_account() {
    const ACCOUNT: u64 = 127 << 20;
    let descriptor = DESCRIPTOR_BYTES + REPLY_BYTES;
    for reply in [REPLY_BYTES, SMALL_BYTES, 1 << 20, descriptor, LARGE] {
        let (mut shares, mut all) = (Shares::default(), 0);
        for uid in 0..20 {
            for number in 0..20 {
                let name: Arc<str> = format!(":{uid}.{number}").into();
                while shares.standing((&name, uid)).unread.fit(reply) {
                    shares.add((&name, uid), |share| share.since += reply);
                    all += reply;
                }
            }
        }
        assert!(all <= ACCOUNT - (15 << 20) && all > POOL_BYTES / 2, "{all}");
        assert!(all / descriptor <= 64 - 8, "{all}");
    }
}

/// A reply of many megabytes is copied, and written, for longer than two looks take.
#[test]
fn what_is_being_sent_is_not_forgotten() {
    let long = Share { since: 16 << 20, long: Some(Instant::now()), ..Share::default() };
    assert!(!long.is_sent());
    let ago = Instant::now().checked_sub(LOOK_AGAIN).unwrap();
    assert!(Share { long: Some(ago), ..long }.is_sent() && Share::default().is_sent());
    assert!(Reply::Inline(16 << 20).is_long() && !Reply::Descriptor.is_long());
    // Tokens take more memory before they are a reply.
    let (tokens, bytes) = (Reply::Tokens(1 << 20), Reply::Inline(1 << 20));
    assert_eq!((tokens.unread(), tokens.held()), (bytes.unread(), 4 * bytes.held()));
}

#[test]
fn who_reads_is_seen_to() {
    let mut share = Share { before: 100, since: 10, ..Share::default() };
    share.learn(share, 100);
    assert_eq!((share.unread(), share.read), (110, None));
    share.learn(share, 105);
    assert_eq!((share.unread(), share.read.is_some()), (105, true));
}

/// Who calls as this name, which the bus is asked the user of.
async fn caller(
    (server, bus): (&Connection, &Connection),
    asked: &mut MessageStream,
    (name, uid): (&'static str, u32),
) -> Caller {
    let call = Message::method_call("/", "Embed").sender(name).build(&()).unwrap();
    let header = call.header();
    let callers = Arc::<Callers>::default();
    let answers = async {
        let question = asked.next().await.unwrap().unwrap();
        bus.reply(&question.header(), &uid).await.unwrap();
    };
    let (caller, ()) = tokio::join!(callers.enter(server, &header), answers);
    caller.unwrap()
}

/// It is asked again for one reply after a minute, and all others have room as before.
#[tokio::test]
async fn a_bus_that_does_not_tell_holds_nothing_back_while_it_is_asked_again() {
    for tells in [false, true] {
        let (server, bus, mut asked) = on_bus().await;
        let one = caller((&server, &bus), &mut asked, (":1.1", 1)).await;
        let other = caller((&server, &bus), &mut asked, (":1.2", 2)).await;
        let unread = Unread::default();
        unread.known.lock().untold = Instant::now().checked_sub(ASK_AGAIN);
        unread.known.lock().add(&one, |share| share.since = 1 << 30);
        let mut first = pin!(unread.room(&one, Reply::Inline(1)));
        assert!(first.as_mut().now_or_never().is_none(), "the bus is not asked");
        for _ in 0..8 {
            let room = unread.room(&other, Reply::Inline(16 << 20)).now_or_never();
            assert_eq!(room, Some(Ok(())), "it waits for an answer");
        }
        let answers = async {
            let question = asked.next().await.unwrap().unwrap();
            let header = question.header();
            let lies = HashMap::from([("IncomingBytes", Variant::from(0_u32))]);
            let no = "org.freedesktop.DBus.Error.AccessDenied";
            match tells {
                true => bus.reply(&header, &lies).await.unwrap(),
                false => bus.reply_error(&header, no, &"no").await.unwrap(),
            }
        };
        let (room, ()) = tokio::join!(first, answers);
        assert_eq!(room, Ok(()), "what was sent untold counts as unread, told: {tells}");
        let known = unread.known.lock();
        assert_eq!((known.is_untold(), known.is_to_be_asked()), (!tells, tells));
    }
}
