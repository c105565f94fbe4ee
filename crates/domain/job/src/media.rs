//! In which forms a job is handed to a control plane, by the media types of HTTP.

/// How a job is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobFormat {
    Toml,
    Json,
    /// A batch script with `#SBATCH` lines.
    Script,
}

impl JobFormat {
    /// From a content type; its parameters do not matter, as long as the text is UTF-8.
    pub fn of(content_type: &str) -> Option<Self> {
        let kind = content_type.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
        match &kind[..] {
            "application/toml" => Some(JobFormat::Toml),
            "application/json" => Some(JobFormat::Json),
            "text/x-shellscript" | "application/x-sh" => Some(JobFormat::Script),
            _ => None,
        }
    }

    pub fn media_type(self) -> &'static str {
        match self {
            JobFormat::Toml => "application/toml",
            JobFormat::Json => "application/json",
            JobFormat::Script => "text/x-shellscript",
        }
    }
}
