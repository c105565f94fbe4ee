//! The end of the chapter: the model that was trained answers a request, over HTTP as any client would ask.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bedplate_data::Tokenizer;
use bedplate_gateway::{GatewayOptions, ServedModel as Served};
use bedplate_serve::{Activations, Engine, EngineOptions, Model};
use bedplate_terminal::{CliError, ProgramError};
use serde_json::{Value, json};

/// Longest time that an answer of a small model takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// Serves a folder and asks it to continue a text.
pub(super) fn continued(folder: &Path, text: &str) -> Result<String, CliError> {
    let model = Model::open(folder)?;
    let options = EngineOptions {
        activations: Activations::F32,
        kv_bytes: 64 << 20,
        max_seqs: 4,
        ..EngineOptions::default()
    };
    let (engine, _) = Engine::start(&model, None, &[], &options)?;
    let tokenizer = Tokenizer::load(&folder.join("tokenizer.json"))?;
    let served = Served::new("tour", vec![Arc::new(engine)], Arc::new(tokenizer))?;
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let running =
        bedplate_gateway::start(vec![served], GatewayOptions { listen, ..GatewayOptions::default() })?;
    let body = json!({ "model": "tour", "prompt": text, "max_tokens": 40, "temperature": 0 });
    let answer = post(running.address(), "/v1/completions", &body);
    running.stop();
    let answer = answer.map_err(|error| bug(&format!("the server did not answer: {error}")))?;
    let text = answer["choices"][0]["text"].as_str().map(str::to_owned);
    text.ok_or_else(|| bug(&format!("the server answered {answer}")).into())
}

fn bug(what: &str) -> ProgramError {
    ProgramError::Bug { what: what.to_owned() }
}

/// One request on a connection of its own.
fn post(address: SocketAddr, path: &str, body: &Value) -> std::io::Result<Value> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let body = body.to_string();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.take(1 << 20).read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    serde_json::from_str(body).map_err(std::io::Error::other)
}
