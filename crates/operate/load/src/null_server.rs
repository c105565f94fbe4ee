//! A server that answers at once: what is measured there is the client's own share.

use std::io;

use bedplate_http::{Answer, Background, Body, Limits, Request, StatusCode, json, read_body, typed};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// Streams as many made-up tokens as it is asked for, without pause.
pub struct NullServer(Background);

impl NullServer {
    pub fn start() -> io::Result<Self> {
        let limits = Limits { connections: 16_384, body_bytes: 64 << 20, ..Limits::default() };
        let given = limits.clone();
        let handler = move |request: Request| answer(request, given.clone());
        let address = "127.0.0.1:0".parse().expect("it is an address");
        Background::start(address, limits, handler).map(Self)
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.0.address())
    }
}

async fn answer(request: Request, limits: Limits) -> Answer {
    let (head, mut body) = request.into_parts();
    if head.uri.path() == "/v1/models" {
        return json(StatusCode::OK, &json!({ "object": "list", "data": [{ "id": "null" }] }));
    }
    let body = match read_body(&head.headers, &mut body, &limits).await {
        Ok(body) => body,
        Err(error) => return json(error.status(), &json!({ "error": { "message": error.to_string() } })),
    };
    let asked: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let tokens = asked["max_tokens"].as_u64().or(asked["max_completion_tokens"].as_u64()).unwrap_or(1);
    let prompt = asked["prompt"].as_array().map_or(0, Vec::len);
    let (sender, receiver) = mpsc::channel(64);
    tokio::spawn(stream(tokens, prompt, sender));
    typed(StatusCode::OK, "text/event-stream", Body::stream(receiver))
}

async fn stream(tokens: u64, prompt: usize, events: mpsc::Sender<Bytes>) {
    const TOKEN: &[u8] =
        b"data: {\"choices\":[{\"index\":0,\"text\":\" a\",\"delta\":{\"content\":\" a\"}}]}\n\n";
    for _ in 0..tokens {
        if events.send(Bytes::from_static(TOKEN)).await.is_err() {
            return;
        }
    }
    let usage = json!({ "choices": [], "usage": { "prompt_tokens": prompt, "completion_tokens": tokens } });
    let _ = events.send(Bytes::from(format!("data: {usage}\n\ndata: [DONE]\n\n"))).await;
}
