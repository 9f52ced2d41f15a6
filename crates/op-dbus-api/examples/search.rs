//! Prints the line of a file that is nearest to each line of standard input, without an event loop: the
//! service reads the file by itself, as a job, and questions take a direct connection.
//!
//!     search log < questions

use std::fs::File;
use std::io::{BufRead, Read, stdin};
use std::os::fd::{AsFd, OwnedFd};

use op_dbus_api::{EmbedderProxyBlocking, JobProxyBlocking, cosine, direct_blocking};
use zbus::Fd;

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: search FILE < QUESTIONS")?;
    let lines = std::fs::read_to_string(&path)?;
    let file = File::open(&path)?;

    let bus = zbus::block_on(zbus::Connection::system())?;
    let embedder = EmbedderProxyBlocking::new(&bus)?;
    let job = embedder.start_embed_from_fd(Fd::from(file.as_fd()), Default::default())?;
    let job = JobProxyBlocking::new(&bus, job)?;
    // Waits until the job has ended.
    let (vectors, rows, dimensions, _info) = job.fetch()?;
    println!("{rows} vectors of {dimensions} numbers");
    let mut bytes = Vec::new();
    File::from(OwnedFd::from(vectors)).read_to_end(&mut bytes)?;
    let vectors = numbers(&bytes);

    let line = EmbedderProxyBlocking::new(&direct_blocking(&embedder)?)?;
    for question in stdin().lock().split(b'\n') {
        // Input is not all UTF-8, and D-Bus closes a connection that sends a NUL.
        let question = String::from_utf8_lossy(&question?).replace('\0', "\u{fffd}");
        let (bytes, ..) = line.embed_packed(&[&question], Default::default())?;
        let question = numbers(&bytes);
        let near =
            vectors.chunks_exact(dimensions as usize).map(|vector| cosine(&question, vector));
        let best = near.zip(lines.lines()).max_by(|a, b| a.0.total_cmp(&b.0));
        let (cosine, text) = best.ok_or("the file has no line")?;
        println!("{cosine:.2}  {text}");
    }
    Ok(())
}

/// Little-endian, as vectors travel.
fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|n| f32::from_le_bytes([n[0], n[1], n[2], n[3]])).collect()
}
