//! Jobs: done, told to their owner alone, and gone when nobody wants them any more.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;

use futures_util::StreamExt;
use op_dbus_api::{
    BUS_NAME, EMBEDDER_INTERFACE, ErrorName, JOB_INTERFACE, JOBS_PATH, JobProxy, MANAGER_INTERFACE,
    ROOT_PATH,
};
use zbus::fdo::ObjectManagerProxy;
use zbus::message::{Flags, Type};
use zbus::{Connection, Fd, MatchRule, Message, MessageStream, OwnedObjectPath};

use crate::faults::limit_descriptors;
use crate::harness::bus::PrivateBus;
use crate::harness::client::{Client, Options, Told, job, refused, value};
use crate::harness::command::{clean, finish};
use crate::harness::daemon::Setup;
use crate::harness::files::content;
use crate::harness::introspection::described;
use crate::harness::registry::tests;
use crate::harness::users::{OTHER, Users};
use crate::harness::{Outcome, eventually, within};
use crate::memory::slow_source;

tests! {
    a_job_is_told_of_and_fetched_once: [Bus],
    a_result_stays_where_descriptors_are_short: [Bus],
    nobody_else_learns_of_a_job: [Bus, Root, Busctl],
    jobs_end_with_their_owner: [Bus],
    a_job_is_cancelled_while_it_computes: [Bus],
    hundreds_of_jobs_are_bounded: [Bus],
    a_change_of_level_leaves_a_job_alone: [Bus],
    a_job_that_fails_says_why: [Bus],
    a_job_ends_with_the_service: [Bus],
    who_wants_no_reply_takes_no_result: [Bus],
}

async fn start(client: &Client, fd: impl AsFd) -> zbus::Result<OwnedObjectPath> {
    client.embedder.start_embed_from_fd(Fd::from(fd.as_fd()), Options::new()).await
}

/// A file of so many lines.
fn lines(setup: &Setup, count: usize) -> Outcome<File> {
    let path = setup.path(&format!("lines-{count}"));
    std::fs::write(&path, (0..count).map(|n| format!("line {n}\n")).collect::<String>())?;
    Ok(File::open(path)?)
}

/// Asks until the job is in this state: who asks is no owner, to whom it would be told.
async fn settled(job: &JobProxy<'_>, wanted: &str) -> Outcome {
    eventually(&format!("a job that is {wanted}"), async || Ok(job.state().await? == wanted)).await
}

/// The job must not be there any more.
fn gone<T>(result: zbus::Result<T>) -> Outcome {
    let error = result.err().ok_or("the job is still there")?;
    let refusal = op_dbus_api::Error::from_reply(&error).ok_or("no error of the contract")?;
    assert_eq!(refusal.name(), ErrorName::UnknownObject, "{refusal}");
    Ok(())
}

/// The jobs that the object manager lists for a connection.
async fn listed(connection: &Connection) -> Outcome<Vec<OwnedObjectPath>> {
    let manager = ObjectManagerProxy::builder(connection).destination(BUS_NAME).path(JOBS_PATH);
    let objects = manager.build().await?.get_managed_objects().await?;
    Ok(objects.into_keys().collect())
}

/// Signals from jobs and their object manager that reach a connection.
async fn signals(connection: &Connection) -> Outcome<MessageStream> {
    let rule = MatchRule::builder().msg_type(Type::Signal).path_namespace(JOBS_PATH).build()?;
    Ok(MessageStream::for_match_rule(rule, connection, None).await?)
}

/// Waits for a signal, and returns those that came before it.
async fn until(stream: &mut MessageStream, member: &str) -> Outcome<Vec<Message>> {
    within(member, async {
        let mut seen = Vec::new();
        while let Some(message) = stream.next().await {
            let message = message?;
            let is_it = message.header().member().is_some_and(|m| m.as_str() == member);
            seen.push(message);
            if is_it {
                return Ok(seen);
            }
        }
        Err("the bus is gone".into())
    })
    .await?
}

/// It is fetched once, and not by a reply that can't be made.
async fn a_result_stays_where_descriptors_are_short() -> Outcome {
    let (_bus, setup, daemon) = Setup::sim()?.alone().await?;
    let job = daemon.client().start_job(lines(&setup, 10)?, Options::new()).await?;
    settled(&job, "done").await?;
    limit_descriptors(&daemon, "3:").await?;
    refused(job.fetch().await, ErrorName::NoSpace)?;
    limit_descriptors(&daemon, "1024:").await?;
    job.fetch().await?;
    daemon.stop().await
}

async fn a_job_is_told_of_and_fetched_once() -> Outcome {
    let (_bus, setup, daemon) = Setup::sim()?.alone().await?;
    let client = daemon.client();
    let mut told = signals(client.connection()).await?;
    let source = lines(&setup, 5000)?;
    let path = start(client, &source).await?;
    until(&mut told, "InterfacesAdded").await?;
    let job = job(client.connection(), path.clone()).await?;
    assert_eq!(listed(client.connection()).await?, std::slice::from_ref(&path));
    settled(&job, "done").await?;
    let changes = until(&mut told, "PropertiesChanged").await?;
    let body = changes.last().ok_or("nothing was told")?.body();
    let (_, changed, _): (&str, Told, Vec<&str>) = body.deserialize()?;
    assert!(!changed.contains_key("BytesTotal"), "what has not changed is told: {changed:?}");
    let bytes = source.metadata()?.len();
    assert_eq!((job.rows().await?, job.bytes_read().await?), (5000, bytes));
    assert_eq!((job.bytes_total().await?, job.error_name().await?), (bytes, String::new()));
    let (fd, rows, dimensions, info): (zbus::OwnedFd, u32, u32, Told) =
        job.inner().call("Fetch", &()).await?;
    assert_eq!((rows, dimensions), (5000, 384));
    assert_eq!((info.len(), value::<u64>(&info, "truncated_count")?), (13, 0));
    let called = client.embedder.embed_from_fd(Fd::from(source.as_fd()), Options::new()).await?;
    assert_eq!(content(fd)?, content(called.0)?);
    gone(job.fetch().await)?;
    gone(job.cancel().await)?;
    until(&mut told, "InterfacesRemoved").await?;
    assert!(listed(client.connection()).await?.is_empty());
    gone(job.fetch().await)?;
    daemon.stop().await
}

/// What `busctl` says to somebody, without the words that name the path.
async fn asked(bus: &PrivateBus, path: &str, words: &[&str]) -> Outcome<String> {
    let mut command = clean("busctl");
    command.arg(format!("--address={}", bus.address())).args(["call", BUS_NAME, path]);
    command.args(words);
    let said = finish(OTHER.runs(&command), "").await?;
    Ok(format!("{:?} {} {}", said.code, said.stdout, said.stderr).replace(path, "PATH"))
}

async fn nobody_else_learns_of_a_job() -> Outcome {
    const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
    const INTROSPECT: [&str; 2] = ["org.freedesktop.DBus.Introspectable", "Introspect"];
    const LIST: [&str; 2] = ["org.freedesktop.DBus.ObjectManager", "GetManagedObjects"];
    let (_users, bus) = Users::on_a_bus(&[]).await?;
    let setup = Setup::sim()?;
    let daemon = setup.ready(&bus).await?;
    let above = ["/", "/org", "/org/opdbus", ROOT_PATH, JOBS_PATH];
    let seen = async || {
        let mut all = vec![asked(&bus, JOBS_PATH, &LIST).await?];
        for path in above {
            all.push(asked(&bus, path, &INTROSPECT).await?);
        }
        Outcome::Ok(all)
    };
    let before = seen().await?;
    assert!(before.iter().all(|said| said.starts_with("Some(0)")), "{before:#?}");
    // Whoever listens, also one of the same user, hears nothing of what goes to the owner.
    let listener = bus.connect().await?;
    let mut heard = signals(&listener).await?;
    let owner = Client::on(&bus).await?;
    let mut told = signals(owner.connection()).await?;
    let (source, writer) = std::io::pipe()?;
    let path = start(&owner, &source).await?;
    let job = job(owner.connection(), path.clone()).await?;
    assert_eq!(seen().await?, before, "somebody else sees that there is a job");
    let made_up = format!("{JOBS_PATH}/{}", "0".repeat(32));
    let questions: [&[&str]; 6] = [
        &[JOB_INTERFACE, "Cancel"],
        &[JOB_INTERFACE, "Fetch"],
        &[PROPERTIES, "GetAll", "s", JOB_INTERFACE],
        &[PROPERTIES, "Get", "ss", JOB_INTERFACE, "State"],
        &[PROPERTIES, "GetAll", "s", EMBEDDER_INTERFACE],
        &INTROSPECT,
    ];
    for words in questions {
        let said = asked(&bus, path.as_str(), words).await?;
        assert!(said.contains("Unknown object 'PATH'"), "{words:?}: {said}");
        assert_eq!(said, asked(&bus, &made_up, words).await?, "{words:?}");
    }
    assert_eq!(job.state().await?, "running");
    drop(writer);
    settled(&job, "done").await?;
    job.fetch().await?;
    let messages = until(&mut told, "InterfacesRemoved").await?;
    assert!(messages.len() > 1, "{messages:?}");
    // What was sent before this question is there before its answer.
    let proxy = zbus::fdo::DBusProxy::new(&listener).await?;
    proxy.get_id().await?;
    let more = futures_util::FutureExt::now_or_never(heard.next());
    assert!(more.is_none(), "somebody else was told: {more:?}");
    daemon.stop().await
}

async fn jobs_end_with_their_owner() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let leaving = Client::on(&bus).await?;
    let (source, mut writer) = std::io::pipe()?;
    writer.write_all(b"one\ntwo\n")?;
    for _ in 0..4 {
        start(&leaving, &source).await?;
    }
    let watching = daemon.client().connection();
    let paths = listed(watching).await?;
    assert_eq!(paths.len(), 4, "another connection of the user sees them");
    leaving.connection().clone().close().await?;
    eventually("the end of the jobs", async || Ok(listed(watching).await?.is_empty())).await?;
    // Their places are free again.
    let again = Client::on(&bus).await?;
    for _ in 0..4 {
        start(&again, &source).await?;
    }
    // And are so again when the answer is there, each time.
    for path in listed(watching).await? {
        job(again.connection(), path).await?.cancel().await?;
        start(&again, &source).await?;
    }
    daemon.stop().await
}

async fn a_job_is_cancelled_while_it_computes() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let client = Client::on(&bus).await?;
    let (source, mut writer) = std::io::pipe()?;
    // The handle keeps the writer, and so the pipe open: the job is not done before it is cancelled.
    let _fed = std::thread::spawn(move || (writer.write_all(&b"a line\n".repeat(400_000)), writer));
    let running = client.start_job(source, Options::new()).await?;
    eventually("the first rows", async || Ok(running.rows().await? != 0)).await?;
    // The call is there before it is cancelled: what one connection sends is taken in its order.
    let cancelled = async {
        running.state().await?;
        running.cancel().await
    };
    let both = async { tokio::join!(running.fetch(), cancelled) };
    let (answer, cancelled) = within("the call that waits for the result", both).await?;
    cancelled?;
    let error = op_dbus_api::Error::from_reply(&answer.expect_err("cancelled"));
    let name = error.ok_or("an error of the contract")?.name();
    assert!([ErrorName::Cancelled, ErrorName::UnknownObject].contains(&name), "{name:?}");
    gone(running.cancel().await)?;
    let ended = async || Outcome::Ok(client.counter("in_flight_calls").await? == 0);
    eventually("the end of its batches", ended).await?;
    client.embedder.embed("still there").await?;
    daemon.stop().await
}

async fn hundreds_of_jobs_are_bounded() -> Outcome {
    let (_bus, setup, daemon) = Setup::sim()?.alone().await?;
    let client = daemon.client();
    let source = lines(&setup, 10)?;
    let mut paths = Vec::new();
    let full = within("all places of a user", async {
        loop {
            match start(client, &source).await {
                Ok(path) => paths.push(path),
                full => {
                    let message = refused(full, ErrorName::QuotaExceeded)?;
                    // Those that run may be too many as well, for a moment.
                    if message.contains("jobs") {
                        return Outcome::Ok(message);
                    }
                }
            }
        }
    })
    .await??;
    assert!(full.contains("16 of 16 jobs"), "{full}");
    assert_eq!(paths.len(), 16);
    // As many at once as a bus lets a connection have.
    let more = futures_util::stream::iter((0..300).map(|_| start(client, &source)));
    let answers: Vec<_> = more.buffer_unordered(100).collect().await;
    for answer in answers {
        refused(answer, ErrorName::QuotaExceeded)?;
    }
    assert_eq!(listed(client.connection()).await?.len(), 16);
    for path in paths {
        assert_eq!(job(client.connection(), path).await?.fetch().await?.1, 10);
    }
    // Their places are free with their answers.
    for _ in 0..4 {
        client.start_job(&source, Options::new()).await?.fetch().await?;
    }
    daemon.stop().await
}

async fn a_change_of_level_leaves_a_job_alone() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let client = daemon.client();
    let (mut writer, job) = slow_source(client, Options::new()).await?;
    client.manager.set_vector_level("high").await?;
    writer.write_all(b"after\n")?;
    drop(writer);
    let (_, rows, _, info) = within("the result", job.fetch()).await??;
    assert_eq!((rows, &*info.level), (2, "low"));
    let now = client.packed(&["x"], Options::new()).await?;
    assert_eq!(now.info::<String>("level")?, "high");
    daemon.stop().await
}

async fn a_job_that_fails_says_why() -> Outcome {
    let (_bus, setup, daemon) = Setup::sim()?.alone().await?;
    let client = daemon.client();
    let file = setup.path("broken");
    std::fs::write(&file, b"good\nb\xffd\n")?;
    let failing = client.start_job(File::open(&file)?, Options::new()).await?;
    settled(&failing, "failed").await?;
    assert_eq!(failing.error_name().await?, ErrorName::InvalidArgument.as_str());
    let message = failing.error_message().await?;
    assert!(message.contains("line 2"), "{message}");
    assert_eq!(refused(failing.fetch().await, ErrorName::InvalidArgument)?, message);
    assert_eq!(client.failures("invalid-argument").await?, 1, "counted again when it is fetched");
    gone(failing.fetch().await)?;
    // What can be told at once is no job.
    refused(start(client, File::open("/dev/zero")?).await, ErrorName::InvalidArgument)?;
    let options = Options::from([("no such option", 1_u32.into())]);
    let source = File::open(&file)?;
    let wrong = client.embedder.start_embed_from_fd(Fd::from(source.as_fd()), options);
    refused(wrong.await, ErrorName::InvalidArgument)?;
    let line = op_dbus_api::direct(&client.embedder).await?;
    let direct = op_dbus_api::EmbedderProxy::new(&line).await?;
    let there = direct.start_embed_from_fd(Fd::from(source.as_fd()), Options::new()).await;
    let message = refused(there, ErrorName::InvalidArgument)?;
    assert!(message.contains("over the bus"), "{message}");
    assert!(listed(client.connection()).await?.is_empty());
    // The owner's own introspection leads to the job and shows it.
    let (pipe, _writer) = std::io::pipe()?;
    let path = start(client, &pipe).await?;
    let name = path.rsplit('/').next().unwrap_or_default();
    let above = described(client.connection(), JOBS_PATH).await?;
    assert!(above.contains(&format!("<node name=\"{name}\"/>")));
    assert!(described(client.connection(), path.as_str()).await?.contains(JOB_INTERFACE));
    daemon.stop().await
}

async fn a_job_ends_with_the_service() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let client = daemon.client();
    let mut told = signals(client.connection()).await?;
    let (source, mut writer) = std::io::pipe()?;
    writer.write_all(b"one\n")?;
    let path = start(client, &source).await?;
    until(&mut told, "InterfacesAdded").await?;
    let waits = job(client.connection(), path).await?;
    // The call is there before the service ends: what one connection sends is taken in its order.
    let ended = async {
        waits.state().await?;
        daemon.stop().await
    };
    let both = async { tokio::join!(waits.fetch(), ended) };
    let (answer, ended) = within("the call that waits for the result", both).await?;
    ended?;
    refused(answer, ErrorName::ShuttingDown).map(drop)
}

/// A bus bounds the calls that wait for a reply. These were any number, held until the job had ended, and
/// the first of them had the result.
async fn who_wants_no_reply_takes_no_result() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let client = daemon.client();
    let (source, mut writer) = std::io::pipe()?;
    let path = start(client, &source).await?;
    for (path, interface, method) in
        [(path.as_str(), JOB_INTERFACE, "Fetch"), (ROOT_PATH, MANAGER_INTERFACE, "ListDevices")]
    {
        let silent = Message::method_call(path, method)
            .destination(BUS_NAME)
            .interface(interface)
            .with_flags(Flags::NO_REPLY_EXPECTED)
            .build(&())?;
        client.connection().send(&silent).await?;
    }
    writer.write_all(b"one\ntwo\n")?;
    drop(writer);
    let job = job(client.connection(), path).await?;
    settled(&job, "done").await?;
    assert_eq!(job.fetch().await?.1, 2);
    assert_eq!(client.failures("invalid-argument").await?, 2);
    daemon.stop().await
}
