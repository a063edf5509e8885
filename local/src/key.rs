//! The key that callers of a runner show, when it has one.

use hyper::header::{AUTHORIZATION, HeaderMap};
use punctual_core::config::WrongVariable;
use subtle::ConstantTimeEq;

/// The variable that holds the key.
pub const API_KEY: &str = "API_KEY";

/// A key. It is in no message and no log.
#[derive(Clone)]
pub struct ApiKey(String);

impl ApiKey {
    /// Reads `API_KEY`; `None` when it is unset. A blank one is refused: who sets it wants to be protected.
    pub fn read(value: Option<&str>) -> Result<Option<Self>, WrongVariable> {
        match value.map(str::trim) {
            None => Ok(None),
            Some("") => Err(WrongVariable {
                name: API_KEY,
                reason: "is set but empty: set a key, or unset it to serve without one".to_owned(),
            }),
            Some(key) => Ok(Some(Self(key.to_owned()))),
        }
    }

    /// Whether the headers carry the key: `Authorization: Bearer <key>`, once.
    pub fn is_shown(&self, headers: &HeaderMap) -> bool {
        let mut sent = headers.get_all(AUTHORIZATION).iter();
        let (Some(value), None) = (sent.next(), sent.next()) else {
            return false;
        };
        let Some((scheme, key)) = value.as_bytes().split_at_checked("Bearer ".len()) else {
            return false;
        };
        scheme.eq_ignore_ascii_case(b"Bearer ") && key.ct_eq(self.0.as_bytes()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    #[test]
    fn only_the_key_opens() {
        let key = ApiKey::read(Some(" s3cret\n")).expect("valid").expect("a key");
        let shown = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, HeaderValue::from_static(value));
            }
            key.is_shown(&headers)
        };
        assert!(shown(&["Bearer s3cret"]));
        assert!(shown(&["bearer s3cret"]));
        for wrong in
            ["", "Bearer", "Bearer ", "Bearer undefined", "s3cret", "Basic s3cret", "Bearer s3cre", "Bearer s3cret2"]
        {
            assert!(!shown(&[wrong]), "{wrong}");
        }
        assert!(!shown(&[]));
        assert!(!shown(&["Bearer s3cret", "Bearer s3cret"]));
    }

    #[test]
    fn a_blank_key_is_refused_by_its_name() {
        assert!(ApiKey::read(None).expect("valid").is_none());
        for blank in ["", " ", "\n"] {
            assert_eq!(ApiKey::read(Some(blank)).err().expect("refused").name, API_KEY);
        }
    }
}
