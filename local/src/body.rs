//! Reading a request's body within bounds of size and time.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::time::timeout;

/// What is read of a body that is too large, and thrown away, so that the client comes to read the answer.
const MAX_DISCARDED_BYTES: u64 = 64 * 1024 * 1024;

/// A body that could not be read.
#[derive(Debug)]
pub enum BodyError {
    /// It has more bytes than the limit.
    TooLarge,
    /// It did not come in time.
    Slow,
    /// The client broke off, or sent what is no HTTP.
    Broken(hyper::Error),
}

/// Reads a body of at most `most` bytes that comes within `time`.
pub async fn read(body: Incoming, most: usize, time: Duration) -> Result<Bytes, BodyError> {
    timeout(time, read_bounded(body, most)).await.unwrap_or(Err(BodyError::Slow))
}

async fn read_bounded(mut body: Incoming, most: usize) -> Result<Bytes, BodyError> {
    let announced = body.size_hint().lower();
    if announced > MAX_DISCARDED_BYTES {
        return Err(BodyError::TooLarge);
    }
    let mut buffer = BytesMut::new();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(BodyError::Broken)?.into_data() else {
            continue;
        };
        length += data.len() as u64;
        if length > MAX_DISCARDED_BYTES {
            break;
        }
        if buffer.len() + data.len() <= most && length <= most as u64 {
            buffer.extend_from_slice(&data);
        } else {
            buffer = BytesMut::new();
        }
    }
    if length > most as u64 { Err(BodyError::TooLarge) } else { Ok(buffer.freeze()) }
}
