//! Moments and spans in milliseconds. Nothing here reads a clock.

use std::borrow::Cow;

use jiff::SpanRelativeTo;
use jiff::civil::DateTime;
use jiff::fmt::temporal::Pieces;
use serde::{Deserialize, Serialize};

/// A moment: milliseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

/// 9999-12-31T23:59:59.999Z, the last moment that a task can be due.
pub const LAST_TIMESTAMP: Timestamp = Timestamp(253_402_300_799_999);

/// Epoch numbers below this are taken for seconds sent by mistake: as milliseconds
/// they all lie before March 1973.
pub const SMALLEST_EPOCH_MS: i64 = 100_000_000_000;

impl Timestamp {
    /// The moment `ms` milliseconds after the epoch.
    pub const fn from_ms(ms: i64) -> Self {
        Self(ms)
    }

    /// Milliseconds since the epoch.
    pub const fn as_ms(self) -> i64 {
        self.0
    }

    /// This moment moved by `ms` milliseconds, held at the ends of the 64-bit range.
    pub const fn plus_ms(self, ms: i64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` to this moment; negative when `earlier` is later.
    pub const fn ms_since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Whole seconds since the epoch that have passed.
    pub const fn as_seconds_down(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// Whole seconds since the epoch, rounded up: DynamoDB's TTL unit.
    pub const fn as_seconds_up(self) -> i64 {
        self.0.div_euclid(1000) + if self.0.rem_euclid(1000) > 0 { 1 } else { 0 }
    }

    /// Reads an RFC 3339 date and time of the years 1970 to 9999. Fractions finer than a
    /// millisecond are rounded up, so that nothing is ever early.
    pub fn parse_rfc3339(text: &str) -> Result<Self, &'static str> {
        const SHAPE: &str = "must be an RFC 3339 date and time like 2030-01-31T18:00:00Z";
        let bytes = text.as_bytes();
        let has = |at: usize, wanted: &[u8]| bytes.get(at).is_some_and(|b| wanted.contains(b));
        let shaped = has(4, b"-")
            && has(7, b"-")
            && has(10, b"Tt")
            && has(13, b":")
            && has(16, b":")
            && !text.contains(['[', ',']);
        if !shaped {
            return Err(SHAPE);
        }
        // A leap second is read as the second before it, which would be early.
        let leap_ns = if text.get(17..19) == Some("60") { 1_000_000_000 } else { 0 };
        let (text, dropped_ns) = with_nanoseconds(text);
        let pieces = Pieces::parse(text.as_ref()).map_err(|_| SHAPE)?;
        let offset = pieces.to_numeric_offset().ok_or(SHAPE)?;
        if offset.seconds().abs() >= 24 * 60 * 60 {
            return Err(SHAPE);
        }
        let time = pieces.time().ok_or(SHAPE)?;
        let epoch = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
        let local = pieces.date().to_datetime(time).duration_since(epoch);
        let nanos = local.as_nanos() + leap_ns + dropped_ns - i128::from(offset.seconds()) * 1_000_000_000;
        let ms = nanos.div_euclid(1_000_000) + i128::from(nanos.rem_euclid(1_000_000) > 0);
        let moment = i64::try_from(ms).map(Self).map_err(|_| SHAPE)?;
        if moment < Self(0) {
            return Err("must not be before the year 1970");
        }
        if moment > LAST_TIMESTAMP {
            return Err("must not be after the year 9999");
        }
        Ok(moment)
    }
}

/// A time whose fraction of a second has more than nine digits, cut to nine, with a nanosecond for what was cut off.
fn with_nanoseconds(text: &str) -> (Cow<'_, str>, i128) {
    let Some((before, rest)) = text.split_once('.') else {
        return (Cow::Borrowed(text), 0);
    };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    if digits <= 9 {
        return (Cow::Borrowed(text), 0);
    }
    let (kept, cut, after) = (&rest[..9], &rest[9..digits], &rest[digits..]);
    let dropped_ns = i128::from(cut.bytes().any(|digit| digit != b'0'));
    (Cow::Owned(format!("{before}.{kept}{after}")), dropped_ns)
}

/// Reads an ISO 8601 duration (`PT30M`, `P1DT2H`, `PT1.5S`) as milliseconds, rounded up. Days are
/// 24 hours; years and months are refused since their length varies.
pub fn parse_iso8601_duration_ms(text: &str) -> Result<i64, &'static str> {
    const SHAPE: &str = "must be an ISO 8601 duration like PT30M, in weeks, days, hours, minutes and seconds";
    if !text.starts_with('P') {
        return Err(SHAPE);
    }
    let span: jiff::Span = text.parse().map_err(|_| SHAPE)?;
    let duration = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| SHAPE)?;
    let nanos = duration.as_nanos();
    let ms = nanos.div_euclid(1_000_000) + i128::from(nanos.rem_euclid(1_000_000) > 0);
    i64::try_from(ms).map_err(|_| SHAPE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc3339_of_any_year_from_1970_to_9999_is_read() {
        let read = |text| Timestamp::parse_rfc3339(text).map(Timestamp::as_ms);
        assert_eq!(read("1970-01-01T00:00:00Z"), Ok(0));
        assert_eq!(read("2030-01-31T18:00:00+02:00"), Ok(1_896_105_600_000));
        assert_eq!(read("9999-12-31T23:59:59.999Z"), Ok(LAST_TIMESTAMP.as_ms()));
        assert_eq!(read("2030-01-31t18:00:00.0001z"), Ok(1_896_112_800_001));
        assert_eq!(read("2030-01-31T18:00:00.001000000000Z"), Ok(1_896_112_800_001));
        assert_eq!(read("2030-01-31T18:00:00.001000000001Z"), Ok(1_896_112_800_002));
        assert_eq!(read("2030-12-31T23:59:60Z"), read("2031-01-01T00:00:00Z"));
    }

    #[test]
    fn what_is_not_rfc3339_is_refused() {
        for text in [
            "",
            "2030-01-31",
            "2030-01-31T18:00:00",
            "2030-01-31 18:00:00Z",
            "2030-02-31T18:00:00Z",
            "10000-01-01T00:00:00Z",
            "9999-12-31T23:59:59-01:00",
            "1969-12-31T23:59:59Z",
            "1896105600000",
            "2030-01-31T18:00:00Z[UTC]",
            "2030-01-31T18:00:00+25:00",
        ] {
            assert!(Timestamp::parse_rfc3339(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_read_in_milliseconds_rounded_up() {
        assert_eq!(parse_iso8601_duration_ms("PT30M"), Ok(1_800_000));
        assert_eq!(parse_iso8601_duration_ms("P1DT2H"), Ok(93_600_000));
        assert_eq!(parse_iso8601_duration_ms("P2W"), Ok(1_209_600_000));
        assert_eq!(parse_iso8601_duration_ms("PT1.5S"), Ok(1_500));
        assert_eq!(parse_iso8601_duration_ms("PT0.0001S"), Ok(1));
        for text in ["", "30M", "P1M", "P1Y", "PT", "5 minutes", "-PT5M"] {
            assert!(parse_iso8601_duration_ms(text).is_err(), "{text}");
        }
    }

    #[test]
    fn seconds_for_the_ttl_are_rounded_up() {
        assert_eq!(Timestamp::from_ms(1_001).as_seconds_up(), 2);
        assert_eq!(Timestamp::from_ms(1_000).as_seconds_up(), 1);
        assert_eq!(Timestamp::from_ms(-1).as_seconds_up(), 0);
    }
}
