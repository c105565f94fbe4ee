//! `GET /v1/usage`

use bedplate_gangs::Time;
use bedplate_journal::{UsageBy, UsageFilter, UsageRow};
use serde_json::{Value, json};

use super::answer::{self, Answer};
use super::call::ApiCall;
use super::error::ApiError;
use super::query::malformed;

pub(crate) async fn usage(call: ApiCall) -> Result<Answer, ApiError> {
    let query = &call.query;
    let by = match query.text("by").unwrap_or("user") {
        "user" => UsageBy::User,
        "account" => UsageBy::Account,
        "day" => UsageBy::Day,
        "job" => UsageBy::Job,
        _ => return Err(malformed("`by` may be user, account, day or job".into())),
    };
    let now = call.app.clock.now();
    let filter = UsageFilter {
        since: Time(query.value("since")?.unwrap_or(0)),
        until: query.value("until")?.map_or(Time::NEVER, Time),
        now,
        user: query.text("user").map(str::to_owned),
        account: query.text("account").map(str::to_owned),
    };
    let rows = call.app.readers.ask(move |reader| reader.usage(by, &filter)).await?;
    let rows: Vec<Value> = rows.iter().map(row_json).collect();
    Ok(answer::ok(&json!({ "usage": rows })))
}

fn row_json(row: &UsageRow) -> Value {
    json!({
        "key": row.key,
        "runs": row.runs,
        "gpu_hours": row.gpu_hours(),
        "cpu_hours": row.cpu_ms / 3_600_000.0,
        "energy_joules": (row.metered_runs > 0).then_some(row.energy_joules),
        "metered_runs": row.metered_runs,
    })
}
