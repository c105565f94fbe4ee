//! Requests from web pages of other origins: refused unless their origin was named.

use bedplate_http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_MAX_AGE, HeaderMap, HeaderValue, VARY,
};
use bedplate_http::{Answer, Body, Method, Request, StatusCode, typed};

pub(crate) struct CrossOrigin(Vec<String>);

impl CrossOrigin {
    pub(crate) fn new(origins: &[String]) -> Self {
        Self(origins.iter().map(|origin| origin.trim_end_matches('/').to_owned()).collect())
    }

    fn allows(&self, origin: &HeaderValue) -> bool {
        let origin = origin.to_str().unwrap_or_default();
        self.0.iter().any(|known| known == "*" || known == origin)
    }

    /// The answer to a browser that asks whether it may.
    pub(crate) fn preflight(&self, request: &Request) -> Option<Answer> {
        let origin = request.headers().get("origin").filter(|origin| self.allows(origin))?;
        let is_question = request.method() == Method::OPTIONS
            && request.headers().contains_key("access-control-request-method");
        is_question.then(|| {
            let mut answer = typed(StatusCode::NO_CONTENT, "text/plain", Body::whole(""));
            let headers = answer.headers_mut();
            headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
            headers.insert(
                ACCESS_CONTROL_ALLOW_HEADERS,
                HeaderValue::from_static("authorization, content-type, x-request-id"),
            );
            headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
            self.permit(Some(origin), headers);
            answer
        })
    }

    /// Tells a browser that its page may read the answer.
    pub(crate) fn permit(&self, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
        if let Some(origin) = origin.filter(|origin| self.allows(origin)) {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            headers.insert(VARY, HeaderValue::from_static("Origin"));
        }
    }
}
