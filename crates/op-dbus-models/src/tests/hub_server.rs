//! A hub on this machine that breaks off, lies or sends on.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

pub(super) const CONTENT: &[u8] = b"0123456789abcdef";
/// What is in `y.bin`.
pub(super) const OTHER: &[u8] = b"fedcba9876543210";

/// What the server does with the next request for the content.
#[derive(Clone)]
pub(super) enum Answer {
    Whole,
    /// Promises everything, sends half and closes.
    Half,
    /// Promises everything, sends half and keeps the connection until the next one.
    Silent,
    /// Everything from its beginning, as a server does that knows of no ranges.
    All,
    /// Promises so many bytes.
    Promise(usize),
    /// Sends for as long as there is somebody to listen.
    Endless,
    /// Everything, with headers that would have it written somewhere.
    Elsewhere(String),
    /// Sends on to there.
    Redirect(String),
}

/// What a request asked for: the range, and on whose behalf.
#[derive(Debug, PartialEq)]
pub(super) struct Asked {
    pub(super) range: String,
    pub(super) authorization: Option<String>,
}

/// Serves one connection per request until all answers are used; returns what was asked for.
fn serve(listener: &TcpListener, answers: Vec<Answer>) -> Vec<Asked> {
    let mut asked = Vec::new();
    let mut kept = None;
    for answer in answers {
        let (mut stream, _) = listener.accept().unwrap();
        drop(kept.take());
        let (request, content) = read_request(&stream);
        let start = request.range.trim_start_matches("bytes=").trim_end_matches('-');
        let start: usize = start.parse().unwrap();
        asked.push(request);
        let left = content.len().saturating_sub(start);
        let rest = &content[content.len() - left..];
        match answer {
            Answer::Redirect(to) => {
                let head = format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n");
                stream.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).unwrap();
            }
            Answer::All => {
                stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n").unwrap();
                stream.write_all(content).unwrap();
            }
            Answer::Endless => {
                let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
                stream.write_all(head).unwrap();
                while stream.write_all(b"8\r\n01234567\r\n").is_ok() {}
            }
            _ if left == 0 => {
                stream.write_all(b"HTTP/1.1 416 Range Not Satisfiable\r\n\r\n").unwrap();
            }
            Answer::Whole => reply(&mut stream, (start, left), rest, ""),
            Answer::Half => reply(&mut stream, (start, left), &rest[..left / 2], ""),
            Answer::Promise(bytes) => reply(&mut stream, (start, bytes), b"", ""),
            Answer::Elsewhere(headers) => reply(&mut stream, (start, left), rest, &headers),
            Answer::Silent => {
                reply(&mut stream, (start, left), &rest[..left / 2], "");
                kept = Some(stream);
            }
        }
    }
    asked
}

/// The same on a port of its own: where it is, and what it will have been asked for.
pub(super) fn begin(answers: Vec<Answer>) -> (String, JoinHandle<Vec<Asked>>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    (endpoint, std::thread::spawn(move || serve(&listener, answers)))
}

/// The ranges that a server was asked for.
pub(super) fn ranges(server: JoinHandle<Vec<Asked>>) -> Vec<String> {
    server.join().unwrap().into_iter().map(|asked| asked.range).collect()
}

/// A request, and the file that it is for.
fn read_request(stream: &TcpStream) -> (Asked, &'static [u8]) {
    let (mut range, mut authorization, mut content) = (String::new(), None, CONTENT);
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap();
        match line.split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("range") => range = value.to_owned(),
            Some((name, value)) if name.eq_ignore_ascii_case("authorization") => {
                authorization = Some(value.to_owned());
            }
            _ if line.is_empty() => break,
            _ if line.contains("/y.bin ") => content = OTHER,
            _ => (),
        }
    }
    (Asked { range, authorization }, content)
}

fn reply(stream: &mut TcpStream, (start, promised): (usize, usize), sent: &[u8], headers: &str) {
    let (end, total) = (start + promised - 1, CONTENT.len());
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {promised}\r\nContent-Range: bytes \
         {start}-{end}/{total}\r\n{headers}Connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(sent).unwrap();
}
