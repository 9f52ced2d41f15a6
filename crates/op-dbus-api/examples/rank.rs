//! Prints the lines of standard input nearest to a question, in a program without an event loop.
//!
//!     rank "why is the network down?" < log

use std::io::Read;

use op_dbus_api::EmbedderProxyBlocking;

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let question = std::env::args_os().nth(1).ok_or("usage: rank QUESTION < LINES")?;
    let mut input = Vec::new();
    std::io::stdin().read_to_end(&mut input)?;
    // Logs are not all UTF-8, and D-Bus closes a connection that sends a NUL.
    let input = String::from_utf8_lossy(&input).replace('\0', "\u{fffd}");
    let lines: Vec<&str> = input.lines().collect();
    let bus = zbus::block_on(zbus::Connection::system())?;
    let embedder = EmbedderProxyBlocking::new(&bus)?;
    let ranks = embedder.rank(&question.to_string_lossy(), &lines, 3)?;
    for (index, cosine) in ranks {
        println!("{cosine:.2}  {}", lines.get(index as usize).unwrap_or(&"?"));
    }
    Ok(())
}
