//! A client for threads without a runtime: one request at a time, on a connection that is kept. Heads are bounded, and a body that ends
//! before its announced length is an error.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// A head of an answer beyond this is not from a daemon of ours.
const LONGEST_HEAD: u64 = 64 << 10;
const CONNECT: Duration = Duration::from_secs(5);

/// What requests and answers go over.
pub trait Transport: Read + Write + Send {
    /// How long the next byte may take; for ever where there is none.
    fn set_patience(&self, patience: Option<Duration>) -> io::Result<()>;
}

impl Transport for TcpStream {
    fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(patience)
    }
}

impl Transport for UnixStream {
    fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(patience)
    }
}

/// A connection on which nothing is under way.
pub struct Connection {
    stream: BufReader<Box<dyn Transport>>,
}

/// A request; the rest of its head is the same for all.
pub struct Request<'a> {
    pub method: &'a str,
    /// With its query.
    pub path: &'a str,
    pub headers: &'a [(&'a str, &'a str)],
    pub body: &'a [u8],
}

/// What goes with every request to a server.
pub struct Caller<'a> {
    pub host: &'a str,
    pub credentials: &'a [(&'a str, &'a str)],
}

/// The head of an answer, and its body while it comes.
pub struct Body {
    pub status: u16,
    headers: Vec<(String, String)>,
    left: Left,
    connection: Connection,
}

/// What is still to come of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Bytes(u64),
    /// So many of this chunk; the size of the next follows.
    Chunk(u64),
    ToTheEnd,
    Nothing,
}

impl Connection {
    /// Connects to `host:port`. No answer may take longer than `patience`.
    pub fn open(address: &str, patience: Duration) -> io::Result<Self> {
        Ok(Self::over(Box::new(connected(address, patience)?)))
    }

    /// Speaks on a connection that was made elsewhere, an encrypted one for instance.
    pub fn over(stream: Box<dyn Transport>) -> Self {
        Self { stream: BufReader::new(stream) }
    }

    /// Connects to a socket in the file system.
    pub fn open_socket(path: &Path, patience: Duration) -> io::Result<Self> {
        // A server that accepts nothing lets `connect` wait without end.
        let (send, connected) = mpsc::channel();
        let path = path.to_owned();
        thread::spawn(move || send.send(UnixStream::connect(path)));
        let stream = connected.recv_timeout(CONNECT.min(patience)).map_err(|_| io::ErrorKind::TimedOut)??;
        stream.set_write_timeout(Some(patience))?;
        stream.set_read_timeout(Some(patience))?;
        Ok(Self::over(Box::new(stream)))
    }

    /// Sends a request and reads the head of its answer.
    pub fn ask(mut self, request: &Request<'_>, caller: &Caller<'_>) -> io::Result<Body> {
        let mut message = format!(
            "{} {} HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n",
            request.method,
            request.path,
            caller.host,
            request.body.len()
        )
        .into_bytes();
        for (name, value) in caller.credentials.iter().chain(request.headers) {
            message.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        message.extend_from_slice(b"\r\n");
        message.extend_from_slice(request.body);
        let stream = self.stream.get_mut();
        stream.write_all(&message)?;
        stream.flush()?;
        self.read_head()
    }

    fn read_head(mut self) -> io::Result<Body> {
        let mut limited = (&mut self.stream).take(LONGEST_HEAD);
        let status_line = read_line(&mut limited)?;
        let status = status_of(&status_line)?;
        let mut headers = Vec::new();
        loop {
            let line = read_line(&mut limited)?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').ok_or_else(|| garbled("a header has no colon"))?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let left = left_of(status, &headers)?;
        Ok(Body { status, headers, left, connection: self })
    }
}

/// A TCP connection to the first address of `host:port` that takes one, with deadlines for reading and writing.
pub fn connected(address: &str, patience: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT.min(patience)) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_write_timeout(Some(patience))?;
                stream.set_read_timeout(Some(patience))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The whole text at a path of `host:port`, where the status is 200. What is cut off, takes longer than `patience` in all or is longer
/// than `most` bytes is an error: a number of which the end is missing would be another number.
pub fn fetch(address: &str, path: &str, patience: Duration, most: u64) -> io::Result<String> {
    let deadline = Instant::now() + patience;
    let request = Request { method: "GET", path, headers: &[("accept", "text/plain, */*")], body: &[] };
    let caller = Caller { host: address, credentials: &[("connection", "close")] };
    let mut body = Connection::open(address, patience)?.ask(&request, &caller)?;
    if body.status != 200 {
        return Err(io::Error::other(format!("it answers with status {}", body.status)));
    }
    let mut bytes = Vec::new();
    let mut piece = [0; 16 << 10];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        body.connection.stream.get_ref().set_patience(Some(left))?;
        match body.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if bytes.len() as u64 > most {
            return Err(garbled(&format!("it answers with more than {most} bytes")));
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn status_of(line: &str) -> io::Result<u16> {
    let mut words = line.split(' ');
    let version = words.next().unwrap_or_default();
    let status = words.next().and_then(|status| status.parse().ok());
    status.filter(|_| version.starts_with("HTTP/1.")).ok_or_else(|| garbled("it does not begin as HTTP does"))
}

fn left_of(status: u16, headers: &[(String, String)]) -> io::Result<Left> {
    let header =
        |name: &str| headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    if status == 204 || status == 304 {
        return Ok(Left::Nothing);
    }
    if header("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
        return Ok(Left::Chunk(0));
    }
    match header("content-length") {
        Some(length) => length.parse().map(Left::Bytes).map_err(|_| garbled("its length is not a number")),
        None => Ok(Left::ToTheEnd),
    }
}

/// A line without its end; an end of the stream before any byte is told apart from one amid a line.
fn read_line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    stream.read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the connection was closed"));
    }
    if line.pop() != Some(b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    String::from_utf8(line).map_err(|_| garbled("its head is not text"))
}

fn garbled(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

impl Body {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// From now on the next byte may take as long as it likes.
    pub fn wait_forever(&self) -> io::Result<()> {
        self.connection.stream.get_ref().set_patience(None)
    }

    /// The connection, once the body has been read to its end and the server keeps it open.
    pub fn into_connection(self) -> Option<Connection> {
        let closes = self.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        (self.left == Left::Nothing && !closes).then_some(self.connection)
    }

    fn next_chunk(&mut self) -> io::Result<()> {
        let line = read_line(&mut (&mut self.connection.stream).take(1024))?;
        let size = line.split(';').next().unwrap_or_default().trim();
        match u64::from_str_radix(size, 16).map_err(|_| garbled("the size of a chunk is not a number"))? {
            0 => {
                while !read_line(&mut (&mut self.connection.stream).take(LONGEST_HEAD))?.is_empty() {}
                self.left = Left::Nothing;
            }
            size => self.left = Left::Chunk(size),
        }
        Ok(())
    }
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == Left::Chunk(0) {
            self.next_chunk()?;
        }
        let most = match self.left {
            Left::Nothing | Left::Bytes(0) => 0,
            Left::Bytes(left) | Left::Chunk(left) => left.min(buffer.len() as u64) as usize,
            Left::ToTheEnd => buffer.len(),
        };
        if most == 0 {
            self.left = if buffer.is_empty() { self.left } else { Left::Nothing };
            return Ok(0);
        }
        let count = self.connection.stream.read(&mut buffer[..most])?;
        if count == 0 && self.left != Left::ToTheEnd {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left = match self.left {
            Left::Bytes(left) if left == count as u64 => Left::Nothing,
            Left::Bytes(left) => Left::Bytes(left - count as u64),
            Left::Chunk(left) => Left::Chunk(left - count as u64),
            other => other,
        };
        if self.left == Left::Chunk(0) {
            read_line(&mut self.connection.stream)?;
        }
        Ok(count)
    }
}
