//! More than anybody needs: floods of descriptors, and requests of a GiB.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsFd;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use op_dbus_api::{Error, ErrorName};
use zbus::{Fd, Variant};

use super::pipeline::{Pipeline, Reply};
use super::watch::{descriptors, descriptors_left, growth_mib};
use super::{Outcome, Size, figure};
use crate::harness::client::{Client, Options, call};
use crate::harness::command::{clean, finish};
use crate::harness::daemon::Setup;
use crate::harness::gateway::Gateway;
use crate::harness::process::peak;
use crate::harness::within;

/// Messages with as many descriptors as the bus lets through, to methods that want none or one.
pub async fn descriptor_flood(size: Size) -> Outcome {
    const EACH: usize = 16;
    const DEPTH: usize = 8;
    const OPEN_MAX: usize = 512;
    let messages = size.of(2_000, 10_000);
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let process = daemon.process.pid();
    let mut pipeline = Pipeline::new(bus.connect().await?);
    let null = File::open("/dev/null")?;
    let fds = || -> Vec<Fd<'_>> { (0..EACH).map(|_| Fd::from(null.as_fd())).collect() };
    let before = descriptors(process)?;
    let (mut most, mut refused, mut answered) = (before, 0, 0);
    for number in 0..messages + DEPTH {
        if number >= DEPTH {
            match pipeline.answer().await?.map(|answer| answer.reply) {
                Some(Reply::Refused(..)) => refused += 1,
                Some(Reply::Vectors(_)) | None => answered += 1,
            }
            most = most.max(descriptors(process)?);
        }
        if number < messages {
            let options: HashMap<&str, Variant<'_>> = HashMap::new();
            let message = match number % 3 {
                0 => call("Embed").build(&(fds(),))?,
                1 => call("NoSuchMethod").build(&(fds(), "a text"))?,
                _ => call("EmbedFromFd").build(&(fds(), options))?,
            };
            pipeline.send(number, &message).await?;
        }
    }
    daemon.client().embedder.embed("still there").await?;
    let after = descriptors_left(process, before).await?;
    let sent = messages * EACH;
    figure(
        after <= before,
        format_args!("{after} descriptors open after {sent}, {before} before, {most} at most"),
    );
    figure(most <= OPEN_MAX, format_args!("{most} of {OPEN_MAX} open at once"));
    figure(
        refused == messages && answered == 0,
        format_args!("{refused} of {messages} messages refused by name"),
    );
    pipeline.close().await?;
    daemon.stop().await
}

/// A GiB in each way that there is.
pub async fn huge_requests(_: Size) -> Outcome {
    const BYTES: u64 = 1 << 30;
    const GROWTH_MAX_MIB: f64 = 24.0;
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    let gateway = Gateway::start(&bus, &setup).await?;
    daemon.client().embedder.embed("warm").await?;
    let (process, front) = (daemon.process.pid(), gateway.process.pid());
    let before = (peak(process)?, peak(front)?);

    let memfd = File::from(memfd_create(c"huge", MFdFlags::MFD_ALLOW_SEALING)?);
    memfd.set_len(BYTES)?;
    fcntl(&memfd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_WRITE))?;
    let embedded = daemon.client().embedder.embed_from_fd(Fd::from(memfd.as_fd()), Options::new());
    let by_memfd = within("the answer to a memfd", embedded).await?.err();
    let by_memfd = by_memfd.as_ref().and_then(Error::from_reply);
    let by_memfd = by_memfd.map_or("nothing", |refusal| refusal.name().as_str());

    let greedy = Client::on(&bus).await?;
    let texts = vec!["x".repeat(1 << 20); 100];
    let inline = within("the answer to a message", greedy.packed(&texts, Options::new())).await?;
    drop(texts);

    let mut shell = clean("sh");
    let script = "head -c $1 /dev/zero | curl --silent --show-error --max-time 120 --upload-file - \
                  --request POST --header 'Content-Type: application/json' --output /dev/null \
                  --write-out '%{http_code}' \"$2\"";
    shell.args(["-c", script, "sh", &BYTES.to_string(), &gateway.url("/embed")]);
    // curl ends with an error when the gateway stops reading; the status tells which.
    let status = finish(shell, "").await?.stdout;

    let grown = (growth_mib(before.0, peak(process)?), growth_mib(before.1, peak(front)?));
    figure(
        by_memfd == ErrorName::TooLarge.as_str(),
        format_args!("a memfd of 1 GiB refused by {by_memfd}"),
    );
    figure(inline.is_err(), format_args!("a message of 100 MiB refused by the bus"));
    figure(status == "413", format_args!("a body of 1 GiB answered with {status}"));
    figure(
        grown.0 <= GROWTH_MAX_MIB && grown.1 <= GROWTH_MAX_MIB,
        format_args!("the daemon grew by {:.1} MiB, the gateway by {:.1} MiB", grown.0, grown.1),
    );
    daemon.client().embedder.embed("still there").await?;
    drop(gateway);
    daemon.stop().await
}
