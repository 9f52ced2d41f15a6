//! Prints the lines of standard input nearest to a question, in a program without an event loop.
//!
//!     rank "why is the network down?" < log

use std::io::read_to_string;
use std::process::ExitCode;

use op_dbus_api::EmbedderProxyBlocking;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let question = std::env::args().nth(1).ok_or("usage: rank QUESTION < LINES")?;
    let input = read_to_string(std::io::stdin())?;
    let lines: Vec<&str> = input.lines().collect();
    let bus = zbus::block_on(zbus::Connection::system())?;
    // D-Bus strings have no NUL: a connection that sends one is closed.
    if let Some(line) = lines.iter().position(|line| line.contains('\0')) {
        return Err(format!("line {} has a NUL byte", line + 1).into());
    }
    let ranks = EmbedderProxyBlocking::new(&bus)?.rank(&question, &lines, 3)?;
    for (index, cosine) in ranks {
        println!("{cosine:.2}  {}", lines.get(index as usize).unwrap_or(&"?"));
    }
    Ok(())
}
