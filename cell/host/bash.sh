# The shell host of belljar cells: bash 4.4 or later. Working directory, variables
# and functions stay; `cell` is the shell's side of the operations. 3 is the channel,
# 4 and 5 are the outputs.
exec 1>&4 2>&5 4>&- 5>&- </dev/null
exec {__bj_fd}<&3 3>&-
unset HISTFILE
__bj_op=0 __bj_requests=0 __bj_context="" __bj_posts=()
LC_ALL=${LC_ALL:-C.UTF-8}

# __bj_quote puts a string as JSON into REPLY.
__bj_quote() {
	local s=$1 c i
	s=${s//\\/\\\\} s=${s//\"/\\\"} s=${s//$'\n'/\\n} s=${s//$'\r'/\\r} s=${s//$'\t'/\\t}
	if [[ $s == *[$'\x01'-$'\x1f'$'\x7f']* ]]; then
		for ((i = 1; i < 32; i++)); do
			printf -v c "\\x$(printf %x $i)"
			s=${s//"$c"/$(printf '\\u%04x' $i)}
		done
	fi
	REPLY="\"$s\""
}

__bj_send() {
	local LC_ALL=C
	printf '%d\n%s' "${#1}" "$1" >&"$__bj_fd"
}

# __bj_frame reads a frame into REPLY. Its first byte may be read already.
__bj_frame() {
	local LC_ALL=C n
	IFS= read -r -u "$__bj_fd" n || exit 0
	n=$1$n
	[[ $n =~ ^[1-9][0-9]{0,7}$ ]] || exit 70
	IFS= read -r -N "$n" -u "$__bj_fd" REPLY || exit 70
}

# __bj_text puts a JSON string's text into REPLY.
__bj_text() {
	local s=$1
	s=${s//\\\//\/} s=${s//\\\"/\"}
	printf -v REPLY %b "$s"
}

# __bj_value turns a JSON string in REPLY into its text, and leaves other JSON alone.
__bj_value() {
	[[ $REPLY == \"*\" ]] || return 0
	REPLY=${REPLY#\"}
	__bj_text "${REPLY%\"}"
}

# cell is what user code calls. What recv and request get is in REPLY: a subshell could
# not keep the messages that come meanwhile.
cell() {
	local op=$1 f level timeout
	case $op in
	recv | request)
		((BASHPID == $$)) || {
			echo "cell: $op must not run in a subshell; its answer is in REPLY" >&2
			return 2
		}
		;;
	esac
	case $op in
	post)
		if [[ $2 == --json ]]; then REPLY=$3; else __bj_quote "$2"; fi
		__bj_send "{\"t\":\"post\",\"value\":$REPLY}"
		;;
	recv)
		if ((${#__bj_posts[@]})); then
			f=${__bj_posts[0]} __bj_posts=("${__bj_posts[@]:1}")
		else
			timeout=
			if [[ -n $2 ]] && ! IFS= read -r -t "$2" -N 1 -u "$__bj_fd" timeout; then
				echo "cell: no message within $2 s" >&2
				return 1
			fi
			__bj_frame "$timeout"
			f=$REPLY
			[[ $f == '{"t":"post","value":'* ]] || exit 70
			f=${f#'{"t":"post","value":'} f=${f%\}}
		fi
		REPLY=$f
		__bj_value
		;;
	log)
		level=$2
		case $level in debug | info | warning | error) ;; *)
			echo "cell: level is debug, info, warning or error" >&2
			return 2
			;;
		esac
		__bj_quote "${*:3}"
		__bj_send "{\"t\":\"log\",\"level\":\"$level\",\"message\":$REPLY}"
		;;
	metric)
		[[ $3 =~ ^-?(0|[1-9][0-9]*)(\.[0-9]+)?$ && -n $2 ]] || {
			echo "cell: metric NAME NUMBER" >&2
			return 2
		}
		__bj_quote "$2"
		__bj_send "{\"t\":\"metric\",\"name\":$REPLY,\"value\":$3}"
		;;
	request)
		[[ -n $2 && -n $3 ]] || {
			echo "cell: request CAPABILITY ACTION [JSON]" >&2
			return 2
		}
		((++__bj_requests))
		__bj_quote "$2"
		f="{\"t\":\"request\",\"id\":$__bj_requests,\"capability\":$REPLY"
		__bj_quote "$3"
		__bj_send "$f,\"action\":$REPLY,\"payload\":${4:-null}}"
		while :; do
			__bj_frame
			case $REPLY in
			'{"t":"post","value":'*)
				f=${REPLY#'{"t":"post","value":'}
				__bj_posts+=("${f%\}}")
				;;
			"{\"t\":\"reply\",\"id\":$__bj_requests,\"ok\":true"*)
				REPLY=${REPLY#*'"value":'}
				REPLY=${REPLY%\}}
				__bj_value
				return 0
				;;
			"{\"t\":\"reply\",\"id\":$__bj_requests,\"ok\":false"*)
				f=${REPLY#*'"error":"'}
				__bj_text "${f%\"\}}"
				echo "cell: $REPLY" >&2
				return 1
				;;
			*) exit 70 ;;
			esac
		done
		;;
	*)
		echo "cell: post, recv, log, metric or request" >&2
		return 2
		;;
	esac
}

# __bj_done reports the end of the operation, with a status and what kind of failure
# it is.
__bj_done() {
	local n=$__bj_op
	((n)) || return
	__bj_op=0
	if [[ $1 == 0 && $2 != exit ]]; then
		__bj_send "{\"t\":\"done\",\"id\":$n,\"ok\":true}"
	else
		__bj_send "{\"t\":\"done\",\"id\":$n,\"ok\":false,\"error\":{\"name\":\"$2\",\"message\":\"$1\"}}"
	fi
}

# __bj_stop, before each command after an interrupt, returns from the user's source.
__bj_stop() {
	[[ " ${FUNCNAME[*]} " != *" source "* ]] || return 2
}

trap '__bj_status=$?; ((BASHPID == $$)) && __bj_done "$__bj_status" exit' EXIT
trap '__bj_interrupted=1; shopt -s extdebug; trap __bj_stop DEBUG' INT

__bj_send "{\"t\":\"hello\",\"v\":1,\"language\":\"shell\",\"version\":\"${BASH_VERSION%%[^0-9.]*}\"}"

__bj_string='"(([^"\\]|\\.)*)"'
while :; do
	__bj_frame
	case $REPLY in
	'{"t":"open","v":1,"id":'*)
		[[ $REPLY =~ \"id\":([0-9]+) ]]
		__bj_op=${BASH_REMATCH[1]}
		[[ $REPLY =~ \"dir\":$__bj_string,\"env\":(\{.*|null) ]]
		__bj_value=${BASH_REMATCH[3]#\{}
		__bj_text "${BASH_REMATCH[1]}"
		__bj_dir=$REPLY
		while [[ $__bj_value =~ ^$__bj_string:$__bj_string,? ]]; do
			__bj_value=${__bj_value#"${BASH_REMATCH[0]}"}
			__bj_name=${BASH_REMATCH[1]}
			__bj_text "${BASH_REMATCH[3]}"
			export "$__bj_name=$REPLY"
		done
		__bj_status=0
		[[ -z $__bj_dir ]] || cd -- "$__bj_dir" || __bj_status=$?
		__bj_done "$__bj_status" dir
		;;
	'{"t":"exec",'*)
		[[ $REPLY =~ ^'{"t":"exec","id":'([0-9]+),\"context\":$__bj_string,\"source\":\" ]] || exit 70
		__bj_op=${BASH_REMATCH[1]}
		__bj_context=${BASH_REMATCH[2]}
		REPLY=${REPLY#"${BASH_REMATCH[0]}"}
		__bj_text "${REPLY%\"\}}"
		__bj_interrupted=
		if [[ -n $__bj_context ]]; then
			echo "a shell has one context" >&2
			__bj_done 2 context
			continue
		fi
		# Sourced, not evaluated: what it declares is global, and it can be left.
		. /dev/fd/9 9<<<"$REPLY"
		__bj_status=$?
		if [[ -n $__bj_interrupted ]]; then
			trap - DEBUG
			shopt -u extdebug
			__bj_done 130 interrupt
		else
			__bj_done "$__bj_status" status
		fi
		;;
	'{"t":"call",'*)
		[[ $REPLY =~ \"id\":([0-9]+),\"context\":\"\",\"target\":$__bj_string,\"args\":\[(.*)\],\"kwargs\":\{\}\}$ ]] || exit 70
		__bj_op=${BASH_REMATCH[1]} __bj_value=${BASH_REMATCH[4]}
		__bj_text "${BASH_REMATCH[2]}"
		__bj_name=$REPLY __bj_args=()
		while [[ $__bj_value =~ ^($__bj_string|-?[0-9.eE+]+|true|false|null),? ]]; do
			__bj_value=${__bj_value#"${BASH_REMATCH[0]}"}
			__bj_text "${BASH_REMATCH[1]}"
			REPLY=${REPLY#\"}
			__bj_args+=("${REPLY%\"}")
		done
		__bj_out=$("$__bj_name" "${__bj_args[@]}")
		__bj_status=$?
		if ((__bj_status)); then
			__bj_done "$__bj_status" status
		else
			__bj_quote "$__bj_out"
			__bj_send "{\"t\":\"done\",\"id\":$__bj_op,\"ok\":true,\"value\":$REPLY}"
			__bj_op=0
		fi
		;;
	'{"t":"post","value":'*)
		REPLY=${REPLY#'{"t":"post","value":'}
		__bj_posts+=("${REPLY%\}}")
		;;
	*) exit 70 ;;
	esac
done
