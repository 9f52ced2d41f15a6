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
    let (stays, _) = callers.register(":1.1".to_owned());
    let (leaves, cancel) = callers.register(":1.2".to_owned());
    callers.left(":1.2");
    callers.remember(&stays, 1);
    callers.remember(&leaves, 2);
    assert!(cancel.is_cancelled());
    assert_eq!(callers.known().users, HashMap::from([(":1.1".to_owned(), 1)]));
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
    let (_stays, here) = callers.register(":1.1".to_owned());
    let (_leaves, gone) = callers.register(":1.2".to_owned());
    callers.missed().notify_one();
    let found = async {
        let question = asked.next().await.unwrap().unwrap();
        let (_late, new) = callers.register(":1.3".to_owned());
        bus.reply(&question.header(), &vec![BUS, ":1.1"]).await.unwrap();
        gone.cancelled().await;
        assert!(!here.is_cancelled() && !new.is_cancelled());
    };
    tokio::select! {
        () = callers.look(&server, Duration::ZERO) => {}
        () = found => {}
    }
    assert_eq!(callers.names(), HashSet::from([":1.1".to_owned()]));
}

/// Whatever the header says, and whoever made the socket.
#[tokio::test]
async fn a_direct_connection_is_whose_it_was_opened_for() {
    let (server, _client) = peers().await;
    let (ticket, cancel) = Arc::<Callers>::default().register(":1.5".to_owned());
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
