//! The tables `collective` of an accelerator: sizes in bytes and times in microseconds, side by side.

use bedplate_document::{DocumentError, Table};
use bedplate_units::{Bytes, Seconds};

use crate::{CollectiveCurve, CollectiveTimes};

pub(super) fn read(accelerator: &Table) -> Result<Vec<CollectiveTimes>, DocumentError> {
    accelerator.tables("collective")?.into_iter().map(|table| one(&table)).collect()
}

fn one(table: &Table) -> Result<CollectiveTimes, DocumentError> {
    let sizes: Vec<f64> = table.required("bytes")?;
    let times: Vec<f64> = table.required("us")?;
    let sizes: Vec<Bytes> = sizes.into_iter().map(Bytes::new).collect();
    let times: Vec<Seconds> = times.into_iter().map(Seconds::us).collect();
    let read = CollectiveTimes {
        operation: table.required("op")?,
        ranks: table.required("ranks")?,
        curve: CollectiveCurve::new(&sizes, &times).map_err(|why| table.bad_value("bytes", why))?,
    };
    if read.ranks < 2 {
        return Err(table.bad_value("ranks", "a collective has at least two"));
    }
    table.finish().map(|()| read)
}
