{{- define "stemcache.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "stemcache.labels" -}}
app.kubernetes.io/name: stemcache
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* Labels that select pods of one component: (list root component) */}}
{{- define "stemcache.selector" -}}
app.kubernetes.io/name: stemcache
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "stemcache.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (printf "%s-cpu" .Chart.AppVersion) }}
{{- end -}}

{{- define "stemcache.workerImage" -}}
{{- if .Values.workers.gpus -}}
{{ .Values.image.repository }}:{{ .Values.image.cudaTag | default (printf "%s-cuda" .Chart.AppVersion) }}
{{- else -}}
{{ include "stemcache.image" . }}
{{- end -}}
{{- end -}}

{{- define "stemcache.keysSecret" -}}
{{ if eq .Values.secrets.mode "existing" }}{{ .Values.secrets.keys }}{{ else }}{{ include "stemcache.name" . }}-keys{{ end }}
{{- end -}}

{{- define "stemcache.redisSecret" -}}
{{ if eq .Values.secrets.mode "existing" }}{{ .Values.secrets.redis }}{{ else }}{{ include "stemcache.name" . }}-redis-users{{ end }}
{{- end -}}

{{- define "stemcache.raySecret" -}}
{{ if eq .Values.secrets.mode "existing" }}{{ .Values.secrets.ray }}{{ else }}{{ include "stemcache.name" . }}-ray-token{{ end }}
{{- end -}}

{{/* Secret with a component's certificate: (list root component) */}}
{{- define "stemcache.tlsSecret" -}}
{{ include "stemcache.name" (index . 0) }}-tls-{{ index . 1 }}
{{- end -}}

{{- define "stemcache.redisHost" -}}
{{ if eq .Values.redis.mode "existing" }}{{ required "redis.host: name the server, since redis.mode is existing" .Values.redis.host }}{{ else }}{{ include "stemcache.name" . }}-redis{{ end }}
{{- end -}}

{{- define "stemcache.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "stemcache.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Variables of Ray for every process that talks to it */}}
{{- define "stemcache.rayEnvironment" -}}
- {name: RAY_AUTH_MODE, value: token}
- {name: RAY_AUTH_TOKEN_PATH, value: /run/secrets/ray/auth_token}
- {name: RAY_USAGE_STATS_ENABLED, value: "0"}
- {name: RAY_gcs_rpc_server_reconnect_timeout_s, value: "600"}
- {name: RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO, value: "0"}
- {name: HOME, value: /tmp}
{{- end -}}

{{- define "stemcache.tlsEnvironment" -}}
{{- if .Values.tls.enabled }}
- {name: STEMCACHE_TLS_CERT_FILE, value: /run/stemcache/tls/tls.crt}
- {name: STEMCACHE_TLS_KEY_FILE, value: /run/stemcache/tls/tls.key}
- {name: STEMCACHE_TLS_CA_FILE, value: /run/stemcache/tls/ca.crt}
{{- end }}
{{- end -}}

{{/* Probes of a node of Ray by a port. KubeRay's own ask an agent that comes with Ray's dashboard, which is not installed. */}}
{{- define "stemcache.rayProbes" -}}
startupProbe: {tcpSocket: {port: {{ . }}}, periodSeconds: 3, failureThreshold: 60}
readinessProbe: {tcpSocket: {port: {{ . }}}, periodSeconds: 5}
livenessProbe: {tcpSocket: {port: {{ . }}}, periodSeconds: 10, failureThreshold: 6}
{{- end -}}

{{/* Metrics and spans of a router or a supervisor */}}
{{- define "stemcache.sightEnvironment" -}}
{{- if .Values.metrics.enabled }}
- {name: STEMCACHE_METRICS_LISTEN, value: "0.0.0.0:9464"}
- {name: STEMCACHE_METRICS_TOKEN_FILE, value: /run/secrets/keys/metrics-token}
{{- else }}
- {name: STEMCACHE_METRICS_LISTEN, value: "off"}
{{- end }}
- {name: STEMCACHE_OTLP_ENDPOINT, value: {{ .Values.tracing.endpoint | quote }}}
- {name: STEMCACHE_TRACES_PER_S, value: {{ int64 .Values.tracing.tracesPerSecond | quote }}}
{{- end -}}

{{/* Rule of a network policy that lets a pod send spans */}}
{{- define "stemcache.collectorEgress" -}}
{{- with .Values.networkPolicy.collectors }}
- to: {{- toYaml . | nindent 4 }}
{{- end }}
{{- end -}}

{{/* Rule of a network policy that lets Prometheus read a pod's metrics */}}
{{- define "stemcache.metricsIngress" -}}
{{- if .Values.metrics.enabled }}
{{- with .Values.networkPolicy.monitoring }}
- from: {{- toYaml . | nindent 4 }}
  ports: [{port: 9464}]
{{- end }}
{{- end }}
{{- end -}}

{{- define "stemcache.spread" -}}
{{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
- maxSkew: 1
  topologyKey: {{ $key }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{- include "stemcache.selector" $ | nindent 6 }}
{{- end }}
{{- end -}}

{{/* Rule of a network policy that lets a pod reach Redis */}}
{{- define "stemcache.redisEgress" -}}
{{- if eq .Values.redis.mode "bundled" }}
- to:
    - podSelector:
        matchLabels: {{- include "stemcache.selector" (list . "redis") | nindent 10 }}
  ports: [{port: {{ .Values.redis.port }}}]
{{- else }}
- to:
    - ipBlock: {cidr: {{ required "networkPolicy.redisCidr: name the addresses of the server, since redis.mode is existing" .Values.networkPolicy.redisCidr }}}
  ports: [{port: {{ .Values.redis.port }}}]
{{- end }}
{{- end -}}

{{/* What a secret of this release has, as JSON: (list root name). Nothing where it is not there yet, or no cluster is asked. */}}
{{- define "stemcache.kept" -}}
{{- $secret := lookup "v1" "Secret" (index . 0).Release.Namespace (index . 1) -}}
{{- toJson (get ($secret | default dict) "data" | default dict) -}}
{{- end -}}

{{/* A size such as 1.5GiB, 10Gi or 500M, in MiB */}}
{{- define "stemcache.mebibytes" -}}
{{- $units := dict "m" 9.5e-10 "" 9.5367431640625e-07 "k" 0.00095367431640625 "Ki" 0.0009765625 "M" 0.95367431640625 "Mi" 1.0 "G" 953.67431640625 "Gi" 1024.0 "T" 953674.31640625 "Ti" 1048576.0 -}}
{{- mulf (regexFind "^[0-9.]+" . | float64) (get $units (regexFind "[A-Za-z]*$" . | trimSuffix "B")) -}}
{{- end -}}
