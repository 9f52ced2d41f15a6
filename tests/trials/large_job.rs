//! A file of many lines through `op-dbus embed --npy`: what all processes take together, and every row.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use nix::unistd::Pid;

use super::{Outcome, Size, figure};
use crate::harness::command::clean;
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::needs::op_dbus;
use crate::harness::process::{Process, peak, resident};
use crate::harness::within;

const TAKEN_MAX: u64 = 200_000_000;
const MB: f64 = 1e6;
/// How often memory is looked at.
const PERIOD: Duration = Duration::from_millis(20);
/// In front of the numbers of an `.npy` file.
const HEAD_BYTES: usize = 128;
const ROW_BYTES: usize = 384 * 4;
/// One row of so many is compared: a prime, so that it falls on all places of a batch.
const SAMPLE: usize = 97;

/// The most that was taken while the command ran, in bytes.
#[derive(Default)]
struct Taken {
    command: u64,
    daemon: u64,
    worker: u64,
    /// Texts and vectors on their way, whoever of the two has them open.
    memfds: u64,
}

pub async fn large_job(size: Size) -> Outcome {
    let lines = size.of(100_000, 1_000_000);
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    let (input, output) = (setup.path("lines"), setup.path("vectors.npy"));
    let mut file = BufWriter::new(File::create(&input)?);
    for number in 0..lines {
        writeln!(file, "{}", line(number))?;
    }
    file.into_inner()?;
    daemon.client().embedder.embed("warm").await?;
    let (service, worker) = (daemon.process.pid(), daemon.workers().await?[0]);
    let before = [resident(service)?, resident(worker)?];
    let texts_before = daemon.client().counter("texts").await?;

    let mut command = clean(op_dbus());
    command.args(["embed", "--npy", "--bus", bus.address(), "--file"]).arg(&input);
    command.arg("--output").arg(&output);
    let mut command = Process::start("op-dbus embed", command, &setup.path("embed.log"))?;
    let pid = command.pid();
    let mut clock = tokio::time::interval(PERIOD);
    let mut taken = Taken::default();
    let ended = async {
        loop {
            tokio::select! {
                status = command.child().wait() => return Ok(status?),
                _ = clock.tick() => taken.look(pid, service, worker)?,
            }
        }
    };
    let status: Outcome<ExitStatus> = within("the end of the command", ended).await?;
    let status = status?;
    if !status.success() {
        return Err(format!("the command ended with {status}").into());
    }
    // The kernel's counts are rough: a peak may be told a little below what was there before.
    let grown = [taken.daemon.saturating_sub(before[0]), taken.worker.saturating_sub(before[1])];
    let all = taken.command + grown[0] + grown[1] + taken.memfds;
    // In a quick run all vectors are less than that, and holding them has to show.
    figure(
        all <= TAKEN_MAX.min((lines * ROW_BYTES) as u64),
        format_args!(
            "{lines} lines: at most {:.0} MB; the command {:.0}, the daemon {:.0} more than before, \
             its worker {:.0}, memfds {:.0}",
            all as f64 / MB,
            taken.command as f64 / MB,
            grown[0] as f64 / MB,
            grown[1] as f64 / MB,
            taken.memfds as f64 / MB
        ),
    );
    let texts = daemon.client().counter("texts").await? - texts_before;
    figure(texts == lines as u64, format_args!("{texts} texts were embedded"));
    check_rows(&daemon, &output, lines).await?;
    daemon.stop().await
}

fn line(number: usize) -> String {
    format!("line {number} of a log that is long enough to be seen in memory, if it is held")
}

impl Taken {
    /// Peaks so far; the last look is a moment before the command ends.
    fn look(&mut self, command: Pid, service: Pid, worker: Pid) -> Outcome {
        (self.daemon, self.worker) = (peak(service)?, peak(worker)?);
        // One that both have open counts once.
        let mut memfds: HashMap<u64, u64> = open_memfds(service)?.into_iter().collect();
        // The command may have ended since, and have nothing.
        self.command = peak(command).unwrap_or(0).max(self.command);
        memfds.extend(open_memfds(command).unwrap_or_default());
        self.memfds = memfds.values().sum::<u64>().max(self.memfds);
        Ok(())
    }
}

/// The memfds of texts and of vectors that a process has open: their inodes and bytes of memory.
fn open_memfds(process: Pid) -> Outcome<Vec<(u64, u64)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{process}/fd"))? {
        let path = entry?.path();
        // It may be closed by now.
        let Ok(name) = fs::read_link(&path) else { continue };
        if name.to_string_lossy().starts_with("/memfd:")
            && let Ok(memfd) = fs::metadata(&path)
        {
            found.push((memfd.ino(), memfd.blocks() * 512));
        }
    }
    Ok(found)
}

/// Each row is of one line, in its place, and there once.
async fn check_rows(daemon: &Daemon, output: &Path, lines: usize) -> Outcome {
    let bytes = fs::metadata(output)?.len();
    let expected = HEAD_BYTES + lines * ROW_BYTES;
    figure(bytes == expected as u64, format_args!("{bytes} bytes of {expected}"));
    let mut file = BufReader::new(File::open(output)?);
    file.read_exact(&mut [0; HEAD_BYTES])?;
    let (hasher, mut seen, mut sample) = (RandomState::new(), HashSet::new(), Vec::new());
    let mut row = [0; ROW_BYTES];
    for number in 0..lines {
        file.read_exact(&mut row)?;
        seen.insert(hasher.hash_one(row));
        if number % SAMPLE == 0 || number == lines - 1 {
            sample.push((number, row.to_vec()));
        }
    }
    let doubled = lines - seen.len();
    figure(doubled == 0, format_args!("{doubled} rows doubled"));
    let mut wrong = 0;
    for rows in sample.chunks(1000) {
        let texts: Vec<String> = rows.iter().map(|(number, _)| line(*number)).collect();
        let vectors = daemon.client().vectors(&texts).await?;
        for (vector, (_, row)) in vectors.iter().zip(rows) {
            let alone: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
            wrong += usize::from(alone != *row);
        }
    }
    figure(
        wrong == 0,
        format_args!("{wrong} of {} rows that were compared are others", sample.len()),
    );
    Ok(())
}
