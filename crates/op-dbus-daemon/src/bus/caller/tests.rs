//! Whose calls are whose, and who has left.

use futures_util::StreamExt;
use zbus::Message;

use super::super::direct::UserRoom;
use super::super::tests::{on_bus, peers};
use super::*;

/// Its next call, still under way then, would be taken for one of somebody who is there, and never end.
#[test]
fn who_leaves_while_the_bus_is_asked_is_not_remembered() {
    let callers = Arc::<Callers>::default();
    let (stays, ..) = callers.register(":1.1");
    let (leaves, cancel, _) = callers.register(":1.2");
    callers.left(":1.2");
    callers.remember(&stays, 1);
    callers.remember(&leaves, 2);
    assert!(cancel.is_cancelled());
    assert_eq!(users(&callers), [(":1.1".to_owned(), Some(1))]);
    drop((stays, leaves));
    assert_eq!(users(&callers), [(":1.1".to_owned(), Some(1))]);
    callers.left(":1.1");
    assert!(users(&callers).is_empty());
}

/// Who is known, with the user where that is.
fn users(callers: &Callers) -> Vec<(String, Option<u32>)> {
    callers.known.lock().peers.values().map(|peer| (peer.name.to_string(), peer.uid)).collect()
}

/// Whoever they were: a call under way is told that its caller has left.
#[test]
fn so_many_users_are_known_and_no_call_is_forgotten_with_them() {
    let callers = Arc::<Callers>::default();
    let (under_way, cancel, _) = callers.register(":0.1");
    callers.remember(&under_way, 1);
    for number in 1..USERS_MAX {
        let (ticket, ..) = callers.register(&format!(":1.{number}"));
        callers.remember(&ticket, 2);
    }
    assert_eq!(users(&callers).len(), USERS_MAX);
    let (one_more, ..) = callers.register(":2.1");
    callers.remember(&one_more, 3);
    assert_eq!(users(&callers).len(), 2);
    let (_next, _, uid) = callers.register(":0.1");
    assert_eq!((uid, callers.register(":2.1").2), (None, Some(3)));
    callers.left(":0.1");
    assert!(cancel.is_cancelled());
}

#[tokio::test]
async fn who_calls_is_asked_again_where_the_answer_was_dropped() {
    let (server, bus, mut asked) = on_bus().await;
    let answers = async {
        let _dropped = asked.next().await;
        let question = asked.next().await.unwrap().unwrap();
        bus.reply(&question.header(), &4711_u32).await.unwrap();
    };
    let callers = Arc::<Callers>::default();
    let enters = async {
        let call = Message::method_call("/", "Embed").sender(":1.1").build(&()).unwrap();
        callers.enter(&server, &call.header()).await.unwrap()
    };
    let (caller, ()) = tokio::join!(enters, answers);
    assert_eq!((caller.uid, caller.sender()), (4711, ":1.1"));
    callers.missed().notified().await;
}

#[tokio::test]
async fn who_left_when_nothing_was_told_is_missed() {
    let (server, bus) = peers().await;
    let mut asked = MessageStream::from(&bus);
    let callers = Arc::<Callers>::default();
    let (_stays, here, _) = callers.register(":1.1");
    let (_leaves, gone, _) = callers.register(":1.2");
    callers.missed().notify_one();
    let found = async {
        let question = asked.next().await.unwrap().unwrap();
        let (_late, new, _) = callers.register(":1.3");
        bus.reply(&question.header(), &vec![BUS, ":1.1"]).await.unwrap();
        gone.cancelled().await;
        assert!(!here.is_cancelled() && !new.is_cancelled());
    };
    tokio::select! {
        () = callers.look(&server, Duration::ZERO) => {}
        () = found => {}
    }
    assert_eq!(callers.names(), HashSet::from([Arc::<str>::from(":1.1")]));
}

/// Whatever the header says, and whoever made the socket.
#[tokio::test]
async fn a_direct_connection_is_whose_it_was_opened_for() {
    let (server, _client) = peers().await;
    let (ticket, cancel, _) = Arc::<Callers>::default().register(":1.5");
    let (connection, serial) = (server.clone(), NonZeroU32::MIN);
    let opener = Caller { uid: 4711, cancel, connection, call_bytes: 0, serial, ticket };
    let gate = Arc::new(Gate::new(UserRoom::of(None)));
    let callers = Arc::new(Callers::of_one(&opener, gate));
    for sender in [None, Some(":1.9")] {
        let mut call = Message::method_call("/", "Embed");
        if let Some(sender) = sender {
            call = call.sender(sender);
        }
        let call = call.build(&()).unwrap();
        let caller = callers.enter(&server, &call.header()).await.unwrap();
        assert_eq!((caller.uid, caller.sender()), (4711, ":1.5"));
        assert!(!caller.cancel.is_cancelled());
    }
    let call = Message::method_call("/", "Embed").build(&()).unwrap();
    let under_way = callers.enter(&server, &call.header()).await.unwrap();
    callers.end();
    let late = callers.enter(&server, &call.header()).await.unwrap();
    assert!(under_way.cancel.is_cancelled() && late.cancel.is_cancelled());
}
