//! Who may own the name, call, and change: the policy files on a bus that knows several users, and
//! a real polkit.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use op_dbus_api::{
    BUS_NAME, EMBEDDER_INTERFACE, ErrorName, MANAGER_INTERFACE, ManagerProxy, ROOT_PATH,
};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use zbus::connection::Builder;
use zbus::message::Header;
use zbus::object_server::Interface;
use zbus::{Connection, OwnedVariant};

use crate::harness::bus::PrivateBus;
use crate::harness::client::{Client, refused};
use crate::harness::command::{Finished, clean, finish};
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::polkit::{self, Polkit};
use crate::harness::registry::tests;
use crate::harness::users::{MEMBER, OTHER, REFUSED, SERVICE, User, Users};
use crate::harness::{Outcome, eventually, repository, within};

tests! {
    the_service_alone_owns_the_name: [Bus, Root, Busctl],
    everyone_embeds_and_reads: [Bus, Root, Busctl],
    a_group_alone_embeds: [Bus, Root, Busctl],
    polkit_lets_through_and_refuses: [Bus, Root, Busctl, Polkit],
    without_polkit_nothing_is_let_through: [Bus, Root, Busctl],
    nobody_is_asked_for_rights_to_what_is_pinned: [Bus, Root, Busctl],
    polkit_is_asked_about_the_caller: [Bus, Root, Busctl],
    polkit_that_allows_late_allows_nothing: [Bus, Root],
}

/// `busctl call` as somebody.
async fn call(bus: &PrivateBus, user: User, flags: &[&str], words: &[&str]) -> Outcome<Finished> {
    let mut command = clean("busctl");
    command.arg(format!("--address={}", bus.address())).args(flags).arg("call").args(words);
    finish(user.runs(&command), "").await
}

async fn embed(bus: &PrivateBus, user: User) -> Outcome<Finished> {
    call(bus, user, &[], &[BUS_NAME, ROOT_PATH, EMBEDDER_INTERFACE, "Embed", "s", "x"]).await
}

async fn set_level(bus: &PrivateBus, user: User, flags: &[&str], level: &str) -> Outcome<Finished> {
    let words = [BUS_NAME, ROOT_PATH, MANAGER_INTERFACE, "SetVectorLevel", "s", level];
    call(bus, user, flags, &words).await
}

/// The call must have been refused, by the bus or by the service; `busctl` tells no more than that.
fn denied(call: Finished) -> Outcome {
    if call.code == Some(0) || !call.stderr.to_lowercase().contains("denied") {
        return Err(format!("not denied ({:?}): {}{}", call.code, call.stdout, call.stderr).into());
    }
    Ok(())
}

/// The call must have been refused by the service, whose log has the sentence; its last one must
/// contain all of `words`.
fn denied_with(call: Finished, daemon: &Daemon, words: &[&str]) -> Outcome {
    denied(call)?;
    told(daemon, words);
    Ok(())
}

/// The service's last refusal must contain all of `words`.
fn told(daemon: &Daemon, words: &[&str]) {
    let log = daemon.process.stderr();
    let said = log.lines().rev().find(|line| line.contains("refused: ")).unwrap_or_default();
    assert!(words.iter().all(|word| said.contains(word)), "{words:?} are not in: {said}");
}

/// A bus that knows the users, with more policy files, and the daemon as the service's user on it.
async fn served(policies: &[&Path]) -> Outcome<(Users, PrivateBus, Setup, Daemon)> {
    let (users, bus) = Users::on_a_bus(policies).await?;
    let setup = Setup::sim()?.setting("log", "debug").of_the_service()?;
    let daemon = users.serve(&setup, &bus, "").await?;
    assert_eq!(daemon.settled().await?, "ready", "{}", daemon.process.stderr());
    Ok((users, bus, setup, daemon))
}

async fn the_service_alone_owns_the_name() -> Outcome {
    let (_users, bus) = Users::on_a_bus(&[]).await?;
    let name = "org.freedesktop.DBus";
    let words = [name, "/org/freedesktop/DBus", name, "RequestName", "su", BUS_NAME, "0"];
    assert_eq!(call(&bus, SERVICE, &[], &words).await?.success()?.trim(), "u 1");
    for user in [MEMBER, OTHER] {
        denied(call(&bus, user, &[], &words).await?)?;
    }
    Ok(())
}

async fn everyone_embeds_and_reads() -> Outcome {
    let (_users, bus, _setup, daemon) = served(&[]).await?;
    embed(&bus, OTHER).await?.success()?;
    let status = [BUS_NAME, ROOT_PATH, MANAGER_INTERFACE, "GetStatus"];
    call(&bus, OTHER, &[], &status).await?.success()?;
    // Not named in the policy.
    let set = [BUS_NAME, ROOT_PATH, "org.freedesktop.DBus.Properties", "Set", "ssv"];
    let set = [&set[..], &[EMBEDDER_INTERFACE, "VectorLevel", "s", "none"]].concat();
    denied(call(&bus, OTHER, &[], &set).await?)?;
    daemon.stop().await
}

async fn a_group_alone_embeds() -> Outcome {
    let group = repository().join("dbus-policy/examples/org.opdbus.Embedding1-group.conf");
    let (_users, bus, _setup, daemon) = served(&[&group.canonicalize()?]).await?;
    for user in [MEMBER, SERVICE, User { name: "root", id: 0 }] {
        embed(&bus, user).await?.success().map_err(|e| format!("{}: {e}", user.name))?;
    }
    denied(embed(&bus, OTHER).await?)?;
    let status = [BUS_NAME, ROOT_PATH, MANAGER_INTERFACE, "GetStatus"];
    denied(call(&bus, OTHER, &[], &status).await?)?;
    let state = [BUS_NAME, ROOT_PATH, "org.freedesktop.DBus.Properties", "Get", "ss"];
    let state = [&state[..], &[EMBEDDER_INTERFACE, "State"]].concat();
    call(&bus, OTHER, &[], &state).await?.success()?;
    daemon.stop().await
}

const RULES: &str = r#"
polkit.addRule(function (action, subject) {
    if (action.id.indexOf("org.opdbus.embedding1.") === 0 && subject.isInGroup("op-dbus")) {
        return polkit.Result.YES;
    }
    if (subject.user === "op-dbus-refused") {
        return polkit.Result.NO;
    }
});
"#;

async fn polkit_lets_through_and_refuses() -> Outcome {
    let (users, bus, _setup, daemon) = served(&[polkit::BUS_POLICY.as_ref()]).await?;
    let _polkit = Polkit::start(&bus, &users, RULES).await?;
    let quiet = "--allow-interactive-authorization=no";

    // No rule says anything: an administrator's password, which nobody is there to type.
    let refusal = set_level(&bus, OTHER, &[quiet], "none").await?;
    assert_ne!(refusal.code, Some(0));
    // The name, which programs go by, is what `busctl` does not show.
    told(&daemon, &["configure", "did not allow to ask", ".InteractiveAuthorizationRequired"]);
    let refusal = set_level(&bus, OTHER, &[], "none").await?;
    denied_with(refusal, &daemon, &["configure", "no agent"])?;
    let reload = [BUS_NAME, ROOT_PATH, MANAGER_INTERFACE, "Reload"];
    let refusal = call(&bus, REFUSED, &[], &reload).await?;
    denied_with(refusal, &daemon, &["polkit does not allow org.opdbus.embedding1.configure"])?;
    let unload = [BUS_NAME, ROOT_PATH, MANAGER_INTERFACE, "Unload"];
    let refusal = call(&bus, REFUSED, &[], &unload).await?;
    denied_with(refusal, &daemon, &["polkit does not allow org.opdbus.embedding1.manage-memory"])?;
    assert_eq!(daemon.client().embedder.vector_level().await?, "low");
    assert_eq!(daemon.workers().await?.len(), 1);
    call(&bus, MEMBER, &[quiet], &unload).await?.success()?;

    set_level(&bus, MEMBER, &[quiet], "none").await?.success()?;
    assert_eq!(daemon.client().embedder.vector_level().await?, "none");
    call(&bus, MEMBER, &[], &reload).await?.success()?;
    daemon.stop().await
}

async fn without_polkit_nothing_is_let_through() -> Outcome {
    let (_users, bus, setup, daemon) = served(&[]).await?;
    let refusal = set_level(&bus, MEMBER, &[], "none").await?;
    denied_with(refusal, &daemon, &["only root", "polkit is not there", "sudo"])?;
    let reload = [BUS_NAME, ROOT_PATH, MANAGER_INTERFACE, "Reload"];
    denied(call(&bus, MEMBER, &[], &reload).await?)?;
    assert_eq!(daemon.client().embedder.vector_level().await?, "low");
    assert!(!setup.state_file().exists(), "a refused change was written");
    // These are not asked about.
    set_level(&bus, SERVICE, &[], "none").await?.success()?;
    set_level(&bus, User { name: "root", id: 0 }, &[], "low").await?.success()?;
    daemon.stop().await
}

async fn nobody_is_asked_for_rights_to_what_is_pinned() -> Outcome {
    let (users, bus) = Users::on_a_bus(&[]).await?;
    let setup = Setup::sim()?.flag("--vector-level=low").of_the_service()?;
    let daemon = users.serve(&setup, &bus, "").await?;
    assert_eq!(daemon.settled().await?, "ready", "{}", daemon.process.stderr());
    let refused = set_level(&bus, MEMBER, &[], "none").await?;
    assert!(refused.stderr.contains("is pinned by"), "{}", refused.stderr);
    daemon.stop().await
}

/// The policy of a bus on which root may be polkit, below `folder`.
fn may_be_polkit(folder: &Path) -> Outcome<PathBuf> {
    let policy = folder.join("polkit.conf");
    fs::write(
        &policy,
        format!(
            "<busconfig><policy user=\"root\"><allow own=\"{0}\"/></policy>\
             <policy context=\"default\"><allow send_destination=\"{0}\"/></policy></busconfig>",
            polkit::NAME
        ),
    )?;
    Ok(policy)
}

/// Has `authority` be polkit. It listens before it has the name: one that is added to a finished connection does some
/// time later, and a question that comes before is never answered.
async fn be_polkit(bus: &PrivateBus, authority: impl Interface) -> Outcome<Connection> {
    let builder = Builder::address(bus.address());
    let builder = builder.serve_at("/org/freedesktop/PolicyKit1/Authority", authority);
    Ok(builder.name(polkit::NAME).build().await?)
}

/// Remembers what it is asked, and says yes.
#[derive(Clone, Default)]
struct Yes(Arc<Mutex<Vec<Question>>>);

#[derive(Debug, PartialEq)]
struct Question {
    kind: String,
    has_name: bool,
    action: String,
    interactive: bool,
}

#[zbus::interface(name = "org.freedesktop.PolicyKit1.Authority")]
impl Yes {
    #[expect(clippy::too_many_arguments, reason = "they are polkit's")]
    fn check_authorization(
        &self,
        subject: (String, HashMap<String, OwnedVariant>),
        action: String,
        _details: HashMap<String, String>,
        flags: u32,
        _cancellation: String,
        #[zbus(header)] header: Header<'_>,
    ) -> (bool, bool, HashMap<String, String>) {
        let (kind, details) = subject;
        let name = details.get("name").and_then(|name| <&str>::try_from(name).ok());
        // The connection that called, not the one that asks.
        let asks = header.sender().map(|sender| sender.as_str().to_owned());
        let has_name = details.len() == 1
            && name.is_some_and(|name| name.starts_with(':') && Some(name) != asks.as_deref());
        let question = Question { kind, has_name, action, interactive: flags == 1 };
        self.0.lock().expect("no test panics in here").push(question);
        (true, false, HashMap::new())
    }
}

async fn polkit_is_asked_about_the_caller() -> Outcome {
    let folder = tempfile::tempdir()?;
    let policy = may_be_polkit(folder.path())?;
    let (_users, bus, _setup, daemon) = served(&[&policy]).await?;
    let yes = Yes::default();
    let _authority = be_polkit(&bus, yes.clone()).await?;

    let quiet = "--allow-interactive-authorization=no";
    set_level(&bus, OTHER, &[quiet], "none").await?.success()?;
    let reload = [BUS_NAME, ROOT_PATH, MANAGER_INTERFACE, "Reload"];
    let loud = "--allow-interactive-authorization=yes";
    call(&bus, OTHER, &[loud], &reload).await?.success()?;
    // What is wrong in itself is nothing to ask anybody about.
    assert_ne!(set_level(&bus, OTHER, &[], "highest").await?.code, Some(0));
    let question = |action: &str, interactive| Question {
        kind: "system-bus-name".to_owned(),
        has_name: true,
        action: format!("org.opdbus.embedding1.{action}"),
        interactive,
    };
    let asked = std::mem::take(&mut *yes.0.lock().expect("no test panics in there"));
    assert_eq!(asked, [question("configure", false), question("configure", true)]);
    daemon.stop().await
}

/// Tells each question that it is asked, and says yes to all of them when it is let.
#[derive(Clone)]
struct Late {
    asked: Arc<Semaphore>,
    answers: Arc<Notify>,
}

#[zbus::interface(name = "org.freedesktop.PolicyKit1.Authority")]
impl Late {
    #[expect(clippy::too_many_arguments, reason = "they are polkit's")]
    async fn check_authorization(
        &self,
        _subject: (String, HashMap<String, OwnedVariant>),
        _action: String,
        _details: HashMap<String, String>,
        _flags: u32,
        _cancellation: String,
    ) -> (bool, bool, HashMap<String, String>) {
        let answers = self.answers.notified();
        self.asked.add_permits(1);
        answers.await;
        (true, false, HashMap::new())
    }
}

async fn polkit_that_allows_late_allows_nothing() -> Outcome {
    let folder = tempfile::tempdir()?;
    let policy = may_be_polkit(folder.path())?;
    let (_users, bus, _setup, daemon) = served(&[&policy]).await?;
    let late = Late { asked: Arc::new(Semaphore::new(0)), answers: Arc::default() };
    let _authority = be_polkit(&bus, late.clone()).await?;

    let caller = Client::new(bus.connect_as(OTHER.id).await?).await?;
    let manager = caller.manager.clone();
    let ask =
        |manager: ManagerProxy<'static>| async move { manager.set_vector_level("none").await };
    let calls: Vec<_> = (0..8).map(|_| tokio::spawn(ask(manager.clone()))).collect();
    // All eight of them: whichever comes ninth is refused.
    within("the questions", late.asked.acquire_many(8)).await??.forget();
    // Nobody keeps polkit from answering others.
    let refusal = within("a refusal", ask(manager)).await?;
    let message = refused(refusal, ErrorName::QuotaExceeded)?;
    assert!(message.contains("8 of 8 questions of polkit"), "{message}");
    // Somebody who is tired of waiting.
    calls.iter().for_each(JoinHandle::abort);
    caller.connection().clone().close().await?;
    drop(caller);
    let have_ended = async || Ok(daemon.client().failures("cancelled").await? == 8);
    eventually("the end of all eight", have_ended).await?;
    late.answers.notify_waiters();
    daemon.client().embedder.embed("x").await?;
    assert_eq!(daemon.client().embedder.vector_level().await?, "low");
    daemon.stop().await
}
